# cmake -DIN=file -DOUT=file.c -DHEADER=path.h -DNAME=symbol -P embed.cmake
# A file as a C array and its size (C17 has no #embed); the header declares both.
file(READ ${IN} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE ${OUT} "#include \"${HEADER}\"

const uint8_t ${NAME}[] = {
${bytes}};
const size_t ${NAME}_size = sizeof(${NAME});
")
