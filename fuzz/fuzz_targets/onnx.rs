#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| orchestrion_fuzz::onnx(data));
