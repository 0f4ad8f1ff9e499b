//! Whose code is run: caches of other users, damaged objects, executables of other machines, and calls that are stopped.

use crate::support::{NORM, Session, good_model};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A user that is neither root nor this one.
const SOMEBODY: u32 = 65534;

fn session(name: &'static str) -> Session {
    let session = Session::new(name);
    session.write("good.onnx", good_model().encode());
    session
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// What a call says that ends with this code.
fn ends(mut command: Command, code: i32) -> String {
    let output = command.output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {}\n{text}", output.status);
    text
}

#[test]
fn caches_of_other_users_are_refused() {
    let session = session("owners");
    let work = session.work();
    let without_home = |temporary: &Path, arguments: &str| {
        let mut command = session.command(arguments);
        command.env_remove("ORCHESTRION_CACHE").env_remove("HOME").env_remove("XDG_CACHE_HOME");
        command.env("TMPDIR", temporary);
        command
    };
    let temporary = work.join("temporary");
    fs::create_dir(&temporary).unwrap();
    fs::set_permissions(&temporary, PermissionsExt::from_mode(0o1777)).unwrap();
    let path = PathBuf::from(ends(without_home(&temporary, "cache path"), 0).trim_end());
    assert!(
        path.starts_with(&temporary) && path != temporary.join("orchestrion"),
        "a name of one user: {}",
        path.display()
    );
    ends(without_home(&temporary, "compile good.onnx --no-calibration"), 0);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
    let said = ends(without_home(&temporary, "compile good.onnx --no-calibration"), 4);
    assert!(said.contains("others may write") && said.contains("--cache-dir"), "{said}");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();

    let mut relative = session.command("cache path");
    relative.env_remove("ORCHESTRION_CACHE").env("XDG_CACHE_HOME", "relative").env("HOME", "/somewhere");
    assert_eq!(ends(relative, 0), "/somewhere/.cache/orchestrion\n");

    for folder in [path.clone(), path.join("kernels"), path.join("tuning")] {
        if std::os::unix::fs::chown(&folder, Some(SOMEBODY), None).is_err() {
            eprintln!("skipped: folders cannot be given away");
            return;
        }
        for command in ["compile good.onnx --no-calibration", "run good.onnx", "cache stats"] {
            let said = ends(without_home(&temporary, command), 4);
            assert!(said.contains("belongs to user 65534"), "{command}: {said}");
        }
        std::os::unix::fs::chown(&folder, Some(0), None).unwrap();
    }
    // An object that somebody else wrote is as absent, in whatever folder it is.
    let objects = objects(&path);
    std::os::unix::fs::chown(&objects[0], Some(SOMEBODY), None).unwrap();
    ends(without_home(&temporary, "run good.onnx"), 0);
    assert_ne!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(&objects[0]).unwrap()), SOMEBODY);
}

/// The shared objects in a cache.
fn objects(cache: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(cache.join("kernels")).unwrap().map(|entry| entry.unwrap().path());
    let objects: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|found| found == "so")).collect();
    assert!(!objects.is_empty());
    objects
}

#[test]
fn caches_are_looked_at_and_emptied_without_a_compiler() {
    let session = session("no-compiler");
    ends(session.command("compile good.onnx --cache-dir cache --no-calibration"), 0);
    let call = |action: &str| {
        let mut command = session.command(&format!("cache --cache-dir cache {action}"));
        command.env("PATH", "/nonexistent");
        ends(command, 0)
    };
    let kernels = format!("{} kernels, ", objects(&session.work().join("cache")).len());
    assert!(call("stats").starts_with(&kernels));
    assert!(call("clear").starts_with("removed "));
    assert_eq!(call("stats"), "0 kernels, 0 bytes; 0 measurements\n");
}

/// A stack larger than all memory has the system refuse every thread.
#[test]
fn refused_threads_are_done_without() {
    use orch_ir::{DType, Tensor};
    use orch_onnx::encode_tensor;
    let session = session("threads-refused");
    let call = |arguments: &str| {
        let mut command = session.command(arguments);
        command.env("RUST_MIN_STACK", (1_u64 << 62).to_string());
        ends(command, 0)
    };
    call("compile good.onnx --no-calibration --jobs 4");
    call("run good.orc --threads 4");
    fs::create_dir_all(session.work().join("case/test_data_set_0")).unwrap();
    session.write("case/model.onnx", good_model().encode());
    for file in ["input_0.pb", "output_0.pb"] {
        let zeros = encode_tensor("x", &Tensor::zeros(DType::F32, [2, 3]));
        session.write(&format!("case/test_data_set_0/{file}"), zeros);
    }
    let said = call("conformance case --no-calibration");
    assert!(said.contains("1 passed"), "{said}");
    session.write("norm.txt", NORM);
    let said = call("superoptimize norm.txt --jobs 4 --no-calibration -q");
    assert!(said.contains("equal to the program"), "{said}");
}

#[test]
fn damaged_objects_are_compiled_again() {
    let session = session("damage");
    let cache = session.work().join("cache");
    let call = |arguments: &str| {
        ends(session.command(&format!("{arguments} --cache-dir cache --no-calibration")), 0)
    };
    call("compile good.onnx -o first.orc");
    let expected = call("run first.orc");
    let damages: [fn(Vec<u8>) -> Vec<u8>; 4] = [
        |object| object[..object.len() / 3].to_vec(),
        |object| vec![0; object.len()],
        |mut object| {
            let at = object.len() / 2;
            object[at] ^= 1;
            object
        },
        |_| b"!<arch>".to_vec(),
    ];
    for damage in damages {
        for path in objects(&cache) {
            fs::write(&path, damage(fs::read(&path).unwrap())).unwrap();
        }
        call("compile good.onnx -o again.orc");
        assert_eq!(call("run again.orc"), expected);
        assert_eq!(call("run good.onnx"), expected);
    }
}

#[test]
fn compilers_are_told_paths_and_have_limits() {
    let session = session("limits");
    let mut dashed = session.command("compile good.onnx --no-calibration");
    dashed.arg("--cache-dir=-c");
    ends(dashed, 0);
    let said = ends(session.command("run good.onnx --threads 20000"), 1);
    assert!(said.contains("at most 1024"), "{said}");
    let mut no_room = session.command("compile good.onnx --no-calibration --cache-dir fresh");
    no_room.env("TMPDIR", "/nonexistent");
    let said = ends(no_room, 4);
    assert!(said.contains("/nonexistent") && said.contains("TMPDIR"), "{said}");
    // A compiler that leaves a process behind which holds its output open is not waited for.
    session.write_script("leaving", "#!/bin/sh\nsleep 60 &\nexec cc \"$@\"\n");
    let start = Instant::now();
    ends(session.command("compile good.onnx --no-calibration --cc ./leaving --cache-dir left"), 0);
    assert!(start.elapsed() < Duration::from_secs(50), "it took {:?}", start.elapsed());
}

#[test]
fn a_full_disk_is_no_bug() {
    let session = session("full-disk");
    let disk = session.work().join("disk");
    fs::create_dir(&disk).unwrap();
    for kilobytes in [40, 100, 200] {
        let mount = format!("-t tmpfs -o size={kilobytes}k,mode=0700 none");
        let mounted = Command::new("mount").args(mount.split(' ')).arg(&disk).stderr(Stdio::null()).status();
        if !mounted.is_ok_and(|status| status.success()) {
            eprintln!("skipped: nothing can be mounted");
            return;
        }
        let output =
            session.command("compile good.onnx --no-calibration --cache-dir disk/cache").output().unwrap();
        let unmounted = Command::new("umount").arg(&disk).status();
        let said = text(&output);
        assert!(matches!(output.status.code(), Some(0 | 4)), "{kilobytes} KB: {}\n{said}", output.status);
        assert!(output.status.success() || said.contains("No space left on device"), "{said}");
        assert!(unmounted.is_ok_and(|status| status.success()));
    }
}

#[test]
fn want_of_memory_is_no_crash() {
    use orch_ir::{DType, Tensor};
    use orch_onnx::builder::{GraphBuilder, node};
    let session = session("memory");
    let sizes = Tensor::from_vec([2], vec![60_000_i64, 100_000]);
    let model = GraphBuilder::new("g")
        .input("x", DType::F32, [1, 1])
        .initializer("s", &sizes)
        .node(node("Expand", ["x", "s"], ["y"]))
        .output("y");
    session.write("large.onnx", model.model(17).encode());
    let limited = |arguments: &str| {
        let call = format!("ulimit -v 4000000; exec {} {arguments}", env!("CARGO_BIN_EXE_orchestrion"));
        let mut command = Command::new("sh");
        command.args(["-c", &call]).current_dir(session.work());
        command.env("ORCHESTRION_CACHE", session.work().join("cache")).stdin(Stdio::null());
        command
    };
    // 24 GB.
    let said = ends(limited("run large.onnx --no-calibration --jobs 1 --threads 1"), 4);
    assert!(said.contains("memory") && !said.contains("panic"), "{said}");
}

/// A compiler that does not answer, and a call that is stopped then.
fn stopped_by(session: &Session, signal: &str) -> Output {
    session.write_script("hanging", "#!/bin/sh\necho started > started\nexec sleep 1000\n");
    let mut command = session.command("compile good.onnx --no-calibration --cc ./hanging --cache-dir cache");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let started = session.work().join("started");
    let start = Instant::now();
    while !started.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "the compiler is not called");
        std::thread::sleep(Duration::from_millis(10));
    }
    fs::remove_file(&started).unwrap();
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let asked = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(asked.elapsed() < Duration::from_secs(15), "{signal} is not heeded");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn every_signal_to_end_is_heeded_and_leaves_nothing() {
    let session = session("signals");
    for signal in ["-INT", "-TERM", "-HUP"] {
        let output = stopped_by(&session, signal);
        assert_eq!(output.status.code(), Some(130), "{signal}: {}", text(&output));
        let left = fs::read_dir(session.work().join("cache/tmp")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{signal} leaves files");
    }
}

/// Calls that are killed, however far they are, and calls that share a cache.
#[test]
fn killed_and_concurrent_calls_lose_nothing() {
    let session = session("killed");
    let expected = {
        ends(session.command("compile good.onnx -o good.orc --no-calibration"), 0);
        ends(session.command("run good.orc"), 0)
    };
    let start = |arguments: &str| {
        let mut command = session.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let compile = "compile good.onnx -o killed.orc --no-calibration --cache-dir shared";
    let rounds = std::env::var("ORCH_KILLS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(8);
    for round in 0..rounds {
        let mut child = start(compile);
        std::thread::sleep(Duration::from_millis(13 * round % 400));
        child.kill().unwrap();
        child.wait().unwrap();
        if session.work().join("killed.orc").exists() {
            assert_eq!(ends(session.command("run killed.orc"), 0), expected, "round {round}");
        }
    }
    let children: Vec<_> =
        (0..8).map(|number| start(&compile.replace("killed.orc", &format!("{number}.orc")))).collect();
    for (number, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(ends(session.command(&format!("run {number}.orc")), 0), expected);
    }
    // What the killed ones left is removed once it is a day old.
    let scratch = session.work().join("shared/tmp");
    let day_before_yesterday = std::time::SystemTime::now() - Duration::from_secs(48 * 60 * 60);
    for entry in fs::read_dir(&scratch).unwrap() {
        fs::File::open(entry.unwrap().path()).unwrap().set_modified(day_before_yesterday).unwrap();
    }
    ends(session.command("cache --cache-dir shared stats"), 0);
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0);
}

#[test]
fn a_cache_that_can_only_be_read_serves_what_it_has() {
    let session = session("read-only");
    ends(session.command("compile good.onnx --no-calibration --cache-dir cache -o first.orc"), 0);
    let cache = session.work().join("cache");
    let bind = |arguments: &str| {
        let status =
            Command::new("mount").args(arguments.split(' ')).arg(&cache).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if !bind(&format!("--bind {}", cache.display())) || !bind("-o remount,bind,ro") {
        eprintln!("skipped: nothing can be mounted");
        return;
    }
    let known =
        session.command("compile good.onnx --no-calibration --cache-dir cache -o second.orc").output();
    let unknown =
        session.command("compile good.onnx --target x86-64-v3 --cache-dir cache -o third.orc").output();
    assert!(Command::new("umount").arg(&cache).status().is_ok_and(|status| status.success()));
    let (known, unknown) = (known.unwrap(), unknown.unwrap());
    assert!(known.status.success(), "{}", text(&known));
    assert_eq!(unknown.status.code(), Some(4), "{}", text(&unknown));
    assert!(text(&unknown).contains("cannot write kernels to the cache"), "{}", text(&unknown));
}
