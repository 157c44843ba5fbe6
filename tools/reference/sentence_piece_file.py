"""What a SentencePiece `.model`, a protobuf message, holds."""


def proto_fields(data):
    """Number and bytes of the fields of a protobuf message that have a length; the others are passed over."""
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(data):
        key = number()
        if key & 7 == 2:
            size = number()
            yield key >> 3, data[at: at + size]
            at += size
        elif key & 7 == 0:
            number()
        else:
            at += 8 if key & 7 == 1 else 4


def charsmap(model):
    """The table of replacements: field 2 of field 3."""
    return dict(proto_fields(dict(proto_fields(model))[3]))[2]
