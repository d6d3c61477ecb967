def make_arg_parser(parser):
    parser.add_argument("--allowed-origins", default=["*"])
    parser.add_argument("--chat-template")
    parser.add_argument("--served-model-name", nargs="+")
    return parser
