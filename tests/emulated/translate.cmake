# cmake -DFROM=kernel -DTO=translated -P translate.cmake: what the host's compiler does not know, in its words. Nothing else
# of a kernel changes.
file(READ ${FROM} text)
string(REGEX REPLACE "const __grid_constant__ ([A-Za-z_]+) " "const \\1 &" text "${text}")
string(REGEX REPLACE "extern __shared__ [^;]* ([a-z_]+)\\[\\];" "uint8_t *\\1 = emulated::shared_memory();" text "${text}")
string(REPLACE "__noinline__" "__attribute__((noinline))" text "${text}")
file(WRITE ${TO} "#line 1 \"${FROM}\"\n${text}")
