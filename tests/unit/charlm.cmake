# The language model of examples/charlm: each layer beside a reference, each backward by finite differences.
foreach(part layers model)
  ampd_test(test_charlm_${part} SUITE unit SOURCES test_charlm_${part}.c LINK charlm_model amp m)
endforeach()
