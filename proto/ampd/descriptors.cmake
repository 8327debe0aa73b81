# cmake -DIN=set.bin -DOUT=set.c -P descriptors.cmake: a file as a C array (C17 has no #embed).
file(READ ${IN} hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE ${OUT} "#include \"proto/descriptors.h\"

const uint8_t ampd_descriptor_set[] = {
${bytes}};

const size_t ampd_descriptor_set_size = sizeof(ampd_descriptor_set);
")
