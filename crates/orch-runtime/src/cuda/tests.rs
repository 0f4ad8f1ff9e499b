//! Tests of devices and what is made on them, with a driver that has no device.

use super::testing::{Fake, floats, function};
use super::*;

fn load_error(fake: &Fake) -> String {
    Driver::load(&fake.paths).unwrap_err().to_string()
}

#[test]
fn without_a_driver_the_error_says_what_to_do() {
    // On a machine with a driver there is nothing to see.
    if let Err(error) = Driver::load(&SearchPaths::default()) {
        let text = error.to_string();
        assert!(!matches!(error, CudaError::NoSymbol { .. }), "{text}");
        assert!(text.contains("NVIDIA"), "{text}");
    }
}

#[test]
fn missing_functions_are_named() {
    let text = load_error(&Fake::without("cuLaunchKernelEx"));
    assert!(text.contains("has no function `cuLaunchKernelEx`") && text.contains("driver again"), "{text}");
    let text = load_error(&Fake::without("cuDriverGetVersion"));
    assert!(text.contains("not the library of an NVIDIA driver"), "{text}");
}

#[test]
fn drivers_that_do_not_serve_are_refused() {
    // An old driver lacks functions too: what is said is that it is old.
    let fake = Fake::without("cuGraphAddKernelNode_v2");
    fake.set("driver_version", 11080);
    assert!(
        load_error(&fake).starts_with("the NVIDIA driver supports CUDA 11.8, but 12.0 or later is needed")
    );
    let fake = Fake::new();
    fake.set("device_count", 0);
    assert!(load_error(&fake).contains("finds no GPU"));
    let error_of = |function: &str, status| {
        let fake = Fake::new();
        fake.fail(function, status, 0);
        load_error(&fake)
    };
    let text = error_of("cuInit", 803);
    assert!(
        text.contains("does not start: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (as the driver says); "),
        "{text}"
    );
    let text = error_of("cuInit", 1000);
    assert!(
        text.contains("does not start: error 1000 (no explanation); see whether"),
        "an unknown error: {text}"
    );
    // What comes with a toolkit for linking only does not tell a version either.
    let text = error_of("cuDriverGetVersion", 34);
    assert!(text.contains("libcuda.so.1) does not start: CUDA_ERROR_STUB_LIBRARY"), "{text}");
}

#[test]
fn devices_are_described() {
    let fake = Fake::new();
    fake.set("device_count", 2);
    let driver = fake.driver();
    assert_eq!(driver.version(), Version { major: 13, minor: 0 });
    let devices = driver.devices().unwrap();
    let info = devices[1].info();
    assert_eq!((devices.len(), info.ordinal, &info.name[..]), (2, 1, "Fake 1"));
    assert_eq!((info.capability.to_string(), info.capability.arch()), ("9.0".into(), "sm_90a".into()));
    assert_eq!((info.sm_count, info.shared_bytes_per_block), (132, 232_448));
    assert_eq!((info.clock_mhz, info.registers_per_sm), (1980, 65_536));
    assert!((info.memory_gbs() - 4916.7).abs() < 0.1, "{}", info.memory_gbs());
    let text = driver.device(2).unwrap_err().to_string();
    assert_eq!(text, "there is no CUDA device 2: this machine has 2, numbered from 0");
}

#[test]
fn contents_come_and_go() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = Stream::new(&context).unwrap();
    let buffer = DeviceBuffer::copy_of(&stream, &[1, 2, 3, 4], "a test").unwrap();
    buffer.copy_from_host(&stream, 1, &[7, 8]).unwrap();
    let other = DeviceBuffer::new(&context, 6, "a test").unwrap();
    other.fill(&stream, 9).unwrap();
    other.copy_from(&stream, 2, &buffer, 1, 3).unwrap();
    let mut bytes = [0; 6];
    other.copy_to_host(&stream, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [9, 9, 7, 8, 4, 9]);

    let text = buffer.copy_from_host(&stream, 3, &[0; 2]).unwrap_err().to_string();
    assert_eq!(text, "internal error: a copy of 2 bytes at 3 leaves a buffer of 4 bytes");
    assert!(other.copy_from(&stream, usize::MAX, &buffer, 0, 2).is_err());
    let mut pinned = PinnedBuffer::new(&context, 3).unwrap();
    assert_eq!(pinned.as_slice(), [0; 3]);
    pinned.as_mut_slice().copy_from_slice(&[1, 2, 3]);
    buffer.copy_from_host(&stream, 0, pinned.as_slice()).unwrap();
    buffer.copy_to_host(&stream, 1, &mut bytes[..3]).unwrap();
    assert_eq!(bytes[..3], [2, 3, 4]);

    let empty = DeviceBuffer::copy_of(&stream, &[], "a test").unwrap();
    empty.fill(&stream, 1).unwrap();
    assert_eq!(fake.memory_used(), 10);
    drop((buffer, other, empty));
    assert_eq!(fake.memory_used(), 0);
}

#[test]
fn want_of_memory_is_told_with_numbers() {
    let fake = Fake::new();
    let context = fake.context();
    let _first = DeviceBuffer::new(&context, 600 << 10, "a test").unwrap();
    let text = DeviceBuffer::new(&context, 1 << 19, "weights").unwrap_err().to_string();
    assert!(
        text.starts_with(
            "out of device memory while allocating memory for weights: 524288 bytes needed, 434176 bytes of 1.0 MiB \
             free; end other programs"
        ),
        "{text}"
    );
    // Where the call does not say how much it wanted.
    fake.fail("cuStreamCreate", 2, 0);
    let text = Stream::new(&context).unwrap_err().to_string();
    assert!(text.starts_with("out of device memory while making a stream: 434176 bytes of"), "{text}");
    // Where the driver cannot report how much memory is free.
    let fake = Fake::new();
    fake.fail("cuDevicePrimaryCtxRetain", 2, 0);
    let error = Context::new(&fake.driver().device(0).unwrap()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with(
            "out of device memory while opening Fake 0: how much is free is not known; end other"
        ),
        "{text}"
    );
    assert!(!error.is_final() && !error.is_internal());
}

#[test]
fn kernels_are_launched_with_their_shape() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = Stream::new(&context).unwrap();
    let buffer = |values: [f32; 4]| DeviceBuffer::copy_of(&stream, &floats(values), "a test").unwrap();
    let (a, b, c) = (buffer([1.0, 2.0, 3.0, 4.0]), buffer([0.5; 4]), buffer([0.0; 4]));
    let add = function(&context, "add");
    let shape =
        LaunchShape { cluster: 2, shared_bytes: 100_000, is_programmatic: true, ..LaunchShape::new(2, 2) };
    let arguments = [a.address(), b.address(), c.address()];
    let text = add.launch(&stream, &shape, &arguments).unwrap_err().to_string();
    assert_eq!(
        text,
        "the driver reports CUDA_ERROR_INVALID_VALUE (as the driver says) while launching kernel `add` (2 blocks of 2 \
         threads in clusters of 2, 100000 bytes of dynamic shared memory)"
    );
    fake.log();
    add.allow(&shape).unwrap();
    add.launch(&stream, &shape, &arguments).unwrap();
    add.allow(&LaunchShape { shared_bytes: 50_000, ..shape }).unwrap();
    assert_eq!(fake.log(), "attribute add 8=100000\nlaunch add 2x2 cluster 2 shared 100000 early\n");
    let mut bytes = [0; 16];
    c.copy_to_host(&stream, 0, &mut bytes).unwrap();
    assert_eq!(bytes[..], floats([1.5, 2.5, 3.5, 4.5]));

    let too_much = LaunchShape { shared_bytes: 240_000, ..shape };
    assert!(add.allow(&too_much).unwrap_err().to_string().contains("240000 bytes of dynamic shared"));
    fake.log();
    add.allow(&LaunchShape { cluster: 16, ..LaunchShape::new(32, 128) }).unwrap();
    assert_eq!(fake.log(), "attribute add 14=1\n");
}

#[test]
fn functions_report_their_resources() {
    let fake = Fake::new();
    let context = fake.context();
    let add = function(&context, "add");
    let expected =
        FunctionAttributes { registers: 40, local_bytes: 16, static_shared_bytes: 512, max_block: 1024 };
    assert_eq!(add.attributes().unwrap(), expected);
    assert_eq!(add.symbol(), "add");
}

#[test]
fn modules_that_do_not_load_are_explained() {
    let fake = Fake::new();
    let context = fake.context();
    let load = |image: &[u8]| Module::load(&context, "kernels 0", image).err().unwrap().to_string();
    assert!(load(b"damaged").contains("(CUDA 13.0) does not load `kernels 0`: error 200"));
    let mut ampere = vec![0; 64];
    ampere[..9].copy_from_slice(b"\x7fELF\x02\x01\x01\x33\x07");
    ampere[18] = 190;
    ampere[48] = 80;
    assert_eq!(
        load(&ampere),
        "`kernels 0` holds code for sm_80, which Fake 0 (compute capability 9.0) does not run; compile the model for \
         this device"
    );
    let other = load(b"fake sm_80\nadd\n");
    assert!(other.contains("(CUDA 13.0) does not load `kernels 0`: CUDA_ERROR_NO_BINARY_FOR_GPU"), "{other}");
    let module = Module::load(&context, "kernels 0", b"fake\nadd\n").unwrap();
    for symbol in ["sub", "", "add\0"] {
        let text = module.function(symbol).err().unwrap().to_string();
        assert!(text.contains("CUDA_ERROR_NOT_FOUND") && text.contains("in `kernels 0`"), "{text}");
    }
    let add = module.function("add").unwrap();
    drop(module);
    assert_eq!(fake.log(), "", "the function keeps its module");
    drop(add);
    assert_eq!(fake.log(), "unload\n");
}

/// PTX of this version with the kernels of the fake driver.
fn ptx(version: &str) -> Vec<u8> {
    format!("//\n// Generated\n//\n\n.version {version}\n.target sm_80\n\n.visible .entry add(\n)\n")
        .into_bytes()
}

#[test]
fn ptx_is_compiled_for_later_devices() {
    let fake = Fake::new();
    fake.set("capability", 120);
    let context = fake.context();
    let module = Module::load(&context, "kernels 0", &ptx("8.4")).unwrap();
    assert_eq!(module.function("add").unwrap().symbol(), "add");
    // Of a later version than the driver's it is declared to be of that.
    fake.set("driver_version", 12080);
    Module::load(&fake.context(), "kernels 0", &ptx("9.2")).unwrap();
    assert_eq!(fake.log(), "compile PTX 8.4 for sm_120\ncompile PTX 8.7 for sm_120\nunload\n");
}

#[test]
fn ptx_that_does_not_compile_is_explained() {
    let load = |fake: &Fake, version| {
        Module::load(&fake.context(), "kernels 0", &ptx(version)).err().unwrap().to_string()
    };
    let fake = Fake::new();
    fake.set("capability", 75);
    assert_eq!(
        load(&fake, "9.0"),
        "`kernels 0` holds code for compute_80, which Fake 0 (compute capability 7.5) does not run; compile the model for \
         this device"
    );
    let fake = Fake::new();
    let text = load(&fake, "10.1");
    assert!(
        text.starts_with(
            "`kernels 0` is PTX of version 10.1, and the driver (CUDA 13.0) compiles versions up to 9.0:"
        ),
        "{text}"
    );
    assert!(text.contains("nvidia-cuda-nvrtc==13.0.*"), "{text}");
    fake.fail("cuModuleLoadDataEx", 218, 0);
    let text = load(&fake, "9.0");
    assert!(
        text.contains("(CUDA 13.0) does not compile the PTX of `kernels 0` for Fake 0: error 218"),
        "{text}"
    );
    assert!(text.ends_with("It says:\nptxas application ptx input, line 7; fatal   : Parsing error near '.word': syntax error"), "{text}");
    let fake = Fake::new();
    fake.fail("cuModuleLoadDataEx", 221, 0);
    assert!(load(&fake, "9.0").contains("libnvidia-ptxjitcompiler.so.1"));
}

#[test]
fn work_is_timed_by_the_device() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = Stream::new(&context).unwrap();
    let buffer = DeviceBuffer::copy_of(&stream, &floats([1.0, 2.0]), "a test").unwrap();
    let (neg, shape) = (function(&context, "neg"), LaunchShape::new(1, 2));
    let mut calls = 0;
    let options = TimeOptions { warmup: 2, replays: 70, flush_l2: false };
    let times = time_on_device(&stream, &options, || {
        calls += 1;
        neg.launch(&stream, &shape, &[buffer.address(); 2])
    });
    let times = times.unwrap();
    assert_eq!((calls, times.len()), (72, 70));
    assert!(times.iter().all(|time| (time - 5.0).abs() < 1e-2), "{times:?}");

    fake.log();
    let options = TimeOptions { warmup: 0, replays: 2, flush_l2: true };
    let times = time_on_device(&stream, &options, || neg.launch(&stream, &shape, &[buffer.address(); 2]));
    assert!(times.unwrap().iter().all(|time| (time - 5.0).abs() < 1e-2), "flushing does not count");
    assert_eq!(
        fake.log(),
        "fill 8192\nlaunch neg 1x2 cluster 1 shared 0\nfill 8192\nlaunch neg 1x2 cluster 1 shared 0\nwait\n"
    );
}

#[test]
fn contexts_serve_several_threads() {
    let fake = Fake::new();
    let context = fake.context();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let stream = Stream::new(&context).unwrap();
                let buffer = DeviceBuffer::copy_of(&stream, &[1, 2, 3], "a test").unwrap();
                let mut bytes = [0; 3];
                buffer.copy_to_host(&stream, 0, &mut bytes).unwrap();
                assert_eq!(bytes, [1, 2, 3]);
            });
        }
    });
}
