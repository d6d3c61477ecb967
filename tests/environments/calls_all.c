// Loads a library that the ELF writer made, calls its functions, and prints what each returns: for a processor that Python
// does not run on here. Arguments: the library and the number of its functions.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uint32_t (*Function)(uint32_t argument);

static uint32_t twice(uint32_t argument) { return 2 * argument; }
static uint32_t fallback(uint32_t number) { return 1000 + number; }

int main(int argc, char** argv) {
  void* library = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
  void** table = library ? dlsym(library, "naiad_function_table") : NULL;
  if (!table) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  int count = atoi(argv[2]);
  table[7] = (void*)twice;
  table[count] = (void*)fallback;
  for (int number = 0; number < count; ++number) {
    char name[32];
    snprintf(name, sizeof name, "function_%d", number);
    Function function = (Function)dlsym(library, name);
    if (!function) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    printf("%u\n", function(21));
  }
  return 0;
}
