//! The operating-system calls that the standard library does not offer, each with a fallback that does nothing or
//! less where the system has no such call.

use orch_files::open_regular;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The CPUs that this process may run on, ascending; empty where the system does not report them.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: `cpu_set_t` is a plain bit array, for which all-zero is the empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a `cpu_set_t` of exactly the size that is passed.
        let status = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
        if status == 0 {
            // SAFETY: every index is below `CPU_SETSIZE`, the number of bits of the set.
            return (0..libc::CPU_SETSIZE as usize)
                .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
                .collect();
        }
    }
    Vec::new()
}

/// The given CPUs by cores: those that are hardware threads of one core are together. Where the system does not tell, each is alone.
pub(crate) fn cores(cpus: &[usize]) -> Vec<Vec<usize>> {
    let mut cores: Vec<(String, Vec<usize>)> = Vec::new();
    for &cpu in cpus {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let siblings = std::fs::read_to_string(file).unwrap_or_else(|_| cpu.to_string());
        match cores.iter_mut().find(|(known, _)| *known == siblings) {
            Some((_, core)) => core.push(cpu),
            None => cores.push((siblings, vec![cpu])),
        }
    }
    cores.into_iter().map(|(_, core)| core).collect()
}

/// How many NUMA nodes the given CPUs belong to; 1 where the system does not tell.
pub(crate) fn numa_nodes(cpus: &[usize]) -> usize {
    numa_nodes_below(Path::new("/sys/devices/system/cpu"), cpus)
}

/// The same by a folder with one for each CPU, in which an entry `nodeN` names its node.
fn numa_nodes_below(folder: &Path, cpus: &[usize]) -> usize {
    let node = |cpu: &usize| {
        let entries = std::fs::read_dir(folder.join(format!("cpu{cpu}"))).ok()?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter_map(|name| name.strip_prefix("node")?.parse::<usize>().ok()).next()
    };
    cpus.iter().filter_map(node).collect::<BTreeSet<usize>>().len().max(1)
}

/// The CPU that the calling thread runs on just now, where the system reports it.
pub(crate) fn current_cpu() -> Option<usize> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the call takes nothing and changes nothing.
        usize::try_from(unsafe { libc::sched_getcpu() }).ok()
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// The time that the calling thread has run, where the system reports it.
pub(crate) fn thread_time() -> Option<std::time::Duration> {
    #[cfg(unix)]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a `timespec`, which is all that the call writes.
        let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        let seconds = u64::try_from(time.tv_sec).ok().filter(|_| status == 0)?;
        let nanoseconds = u32::try_from(time.tv_nsec).ok()?;
        Some(std::time::Duration::new(seconds, nanoseconds))
    }
    #[cfg(not(unix))]
    None
}

/// How often this process has been forked from the one in which this function was first called: threads that were started at
/// another count do not exist here. 0 where the system has no fork.
pub(crate) fn forks() -> u32 {
    #[cfg(unix)]
    {
        use std::sync::Once;
        use std::sync::atomic::{AtomicU32, Ordering};
        static FORKS: AtomicU32 = AtomicU32::new(0);
        static REGISTERED: Once = Once::new();
        extern "C" fn count() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        REGISTERED.call_once(|| {
            // SAFETY: the handler only adds to an atomic, which is allowed after a fork. Without it the count stays 0.
            unsafe { libc::pthread_atfork(None, None, Some(count)) };
        });
        FORKS.load(Ordering::Relaxed)
    }
    #[cfg(not(unix))]
    0
}

/// Binds the calling thread to one CPU; false if the system refuses or has no such call.
pub(crate) fn pin_current_thread(cpu: usize) -> bool {
    #[cfg(target_os = "linux")]
    {
        if cpu >= libc::CPU_SETSIZE as usize {
            return false;
        }
        // SAFETY: `cpu_set_t` is a plain bit array, for which all-zero is the empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: `cpu` is below `CPU_SETSIZE`, checked above.
        unsafe { libc::CPU_SET(cpu, &mut set) };
        // SAFETY: the pointer is to a `cpu_set_t` of exactly the size that is passed; 0 is the calling thread.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0 }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = cpu;
        false
    }
}

/// Requests from Linux the permission to use AMX tile registers, which holds for the whole process; true if granted.
pub(crate) fn request_amx() -> bool {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        // SAFETY: this `arch_prctl` operation takes two integers and changes nothing but a permission.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    false
}

/// Advises the kernel to back a fresh allocation with huge pages: fewer TLB misses in large arenas.
///
/// # Safety
/// The `len` bytes at `start` must be one allocation of the caller's.
pub(crate) unsafe fn advise_huge_pages(start: *mut u8, len: usize) {
    #[cfg(target_os = "linux")]
    {
        const PAGE_BYTES: usize = 4096;
        let skip = start.align_offset(PAGE_BYTES);
        if skip < len {
            // SAFETY: the range lies inside the caller's allocation, and this advice does not change its content.
            // Refusal (no huge pages on this system) is harmless.
            unsafe { libc::madvise(start.add(skip).cast(), len - skip, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, len);
}

/// Makes a command that is yet to be started the first of a process group of its own: Ctrl-C in a terminal does not
/// reach it then, so that it ends when its caller ends it. On Linux the command gets SIGTERM when the thread that started it ends for
/// whatever reason, and each process that it starts is limited to `cpu_seconds` of CPU time.
pub(crate) fn in_own_group(command: &mut Command, cpu_seconds: u64) -> &mut Command {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(target_os = "linux")]
    {
        let limit = libc::rlimit { rlim_cur: cpu_seconds, rlim_max: cpu_seconds.saturating_add(1) };
        let before_it_runs = move || {
            // SAFETY: both are plain system calls, which may be made between fork and exec; the limit outlives its call. Without them
            // the command runs as well.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                libc::setrlimit(libc::RLIMIT_CPU, &raw const limit);
            }
            Ok(())
        };
        // SAFETY: the closure makes two system calls and touches no memory but its own.
        unsafe { std::os::unix::process::CommandExt::pre_exec(command, before_it_runs) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = cpu_seconds;
    command
}

/// True if the file system of a folder has no room left for a small file; false where the system does not tell.
pub(crate) fn is_full(folder: &Path) -> bool {
    const SMALL_BYTES: u64 = 64 << 10;
    #[cfg(unix)]
    {
        rustix::fs::statvfs(folder).is_ok_and(|system| {
            let has_no_files_left = system.f_files > 0 && system.f_favail == 0;
            system.f_bavail.saturating_mul(system.f_frsize) < SMALL_BYTES || has_no_files_left
        })
    }
    #[cfg(not(unix))]
    {
        let _ = (folder, SMALL_BYTES);
        false
    }
}

/// Asks the process `leader`, started by [`in_own_group`] and not yet waited for, and all of its group to end.
pub(crate) fn end_group(leader: u32) {
    #[cfg(unix)]
    if let Some(group) = libc::pid_t::try_from(leader).ok().filter(|&group| group > 1) {
        // SAFETY: the call only sends a signal. The leader has not been waited for, so its number is still its group's.
        unsafe { libc::kill(-group, libc::SIGTERM) };
    }
    #[cfg(not(unix))]
    let _ = leader;
}

/// The memory that this process may have, in bytes, where the system tells: that of the machine, or less where a control group or a limit
/// of the address space allows less.
pub fn memory_bytes() -> Option<u64> {
    [physical_bytes(), control_group_bytes(), address_space_bytes()].into_iter().flatten().min()
}

fn physical_bytes() -> Option<u64> {
    #[cfg(unix)]
    {
        // SAFETY: the calls take a number and return one.
        let (pages, page) =
            unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
        u64::try_from(pages).ok()?.checked_mul(u64::try_from(page).ok()?).filter(|&bytes| bytes > 0)
    }
    #[cfg(not(unix))]
    None
}

/// The least limit of the control groups that this process is in (version 2, and version 1 as containers see it).
fn control_group_bytes() -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        const ROOT: &str = "/sys/fs/cgroup";
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let group = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let root = Path::new(ROOT);
        let own = root.join(group);
        let above = own.ancestors().take_while(|folder| folder.starts_with(root));
        let files = above.map(|folder| folder.join("memory.max"));
        let files = files.chain([root.join("memory/memory.limit_in_bytes")]);
        files.filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok()).min()
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// What the limit of the address space (`ulimit -v`) leaves beside what is in use.
fn address_space_bytes() -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the pointer is to an `rlimit`, which is all that the call writes.
        let status = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
        if status != 0 || limit.rlim_cur == libc::RLIM_INFINITY {
            return None;
        }
        let used_pages = std::fs::read_to_string("/proc/self/statm").ok()?;
        let used_pages: u64 = used_pages.split(' ').next()?.parse().ok()?;
        // SAFETY: the call takes a number and returns one.
        let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
        Some(limit.rlim_cur.saturating_sub(used_pages.saturating_mul(page)))
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// The system's allocator, which ends the process with a message and this exit code where there is no memory. (The standard library
/// aborts, which looks like a crash.)
pub struct ExitingAllocator<const CODE: i32>;

impl<const CODE: i32> ExitingAllocator<CODE> {
    /// What the allocator gave, if that is memory.
    fn checked(start: *mut u8, bytes: usize) -> *mut u8 {
        if start.is_null() {
            Self::exit(bytes);
        }
        start
    }

    fn exit(bytes: usize) -> ! {
        use std::io::Write;
        // Written piece by piece: nothing may be allocated here.
        let mut error = std::io::stderr();
        let _ = writeln!(
            error,
            "error: out of memory: {bytes} more bytes were needed; raise the memory limit, or compile and run the model for smaller shapes"
        );
        // SAFETY: ends the process without running what would allocate again.
        unsafe { libc::_exit(CODE) }
    }
}

// SAFETY: all is done by the system's allocator, whose contract is this one.
unsafe impl<const CODE: i32> std::alloc::GlobalAlloc for ExitingAllocator<CODE> {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        Self::checked(unsafe { std::alloc::System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: std::alloc::Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        Self::checked(unsafe { std::alloc::System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, start: *mut u8, layout: std::alloc::Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        Self::checked(unsafe { std::alloc::System.realloc(start, layout, size) }, size)
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: std::alloc::Layout) {
        // SAFETY: as the caller promises.
        unsafe { std::alloc::System.dealloc(start, layout) }
    }
}

/// A read-only file with given content that no directory lists, but that can be opened by path while this lives.
pub(crate) struct AnonymousFile {
    path: PathBuf,
    #[cfg(target_os = "linux")]
    _file: std::fs::File,
    #[cfg(not(target_os = "linux"))]
    _dir: orch_files::Scratch,
}

impl AnonymousFile {
    /// A file with this content.
    pub(crate) fn new(content: &[u8]) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        {
            use std::io::Write;
            use std::os::fd::{AsRawFd, FromRawFd};
            // SAFETY: the name is a NUL-terminated literal.
            let fd = unsafe { libc::memfd_create(c"orchestrion-kernels".as_ptr(), libc::MFD_CLOEXEC) };
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: `fd` was just opened and has no other owner.
            let mut file = unsafe { std::fs::File::from_raw_fd(fd) };
            file.write_all(content)?;
            Ok(Self { path: format!("/proc/self/fd/{}", file.as_raw_fd()).into(), _file: file })
        }
        #[cfg(not(target_os = "linux"))]
        {
            let dir = orch_files::Scratch::new()?;
            let path = dir.path().join("kernels.so");
            std::fs::write(&path, content)?;
            Ok(Self { path, _dir: dir })
        }
    }

    /// The path to open. It names another file once `self` is dropped.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Refuses what the dynamic loader does not survive: a pipe, for whose writer it waits, and an ELF file that ends before its
/// segments do, which it maps, so that the process dies of the first access to what is missing. Files of other kinds, or that
/// cannot be read, are left for the loader to judge.
///
/// # Errors
/// A clause that says what it is, or how long the file is.
pub(crate) fn check_library(path: &Path) -> Result<(), String> {
    let file = match open_regular(path) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return Err(format!("{}: {error}", path.display()));
        }
        file => file.ok(),
    };
    match file.and_then(segments_end) {
        Some((end, len)) if end > len => {
            Err(format!("{}: the file is cut off: it has {len} bytes instead of {end}", path.display()))
        }
        _ => Ok(()),
    }
}

/// The end of the last segment of a 64-bit little-endian ELF file, and the file's length.
fn segments_end(mut file: File) -> Option<(u64, u64)> {
    use std::io::{Read, Seek, SeekFrom};
    const HEADER_BYTES: usize = 64;
    const ENTRY_BYTES: usize = 56;
    let mut header = [0; HEADER_BYTES];
    file.read_exact(&mut header).ok()?;
    let word = |bytes: &[u8], at: usize| -> Option<u64> {
        Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
    };
    let entries = usize::from(u16::from_le_bytes([header[56], header[57]]));
    if !header.starts_with(b"\x7fELF\x02\x01") || usize::from(header[54]) != ENTRY_BYTES {
        return None;
    }
    file.seek(SeekFrom::Start(word(&header, 32)?)).ok()?;
    let mut table = vec![0; entries * ENTRY_BYTES];
    file.read_exact(&mut table).ok()?;
    let end = |entry: &[u8]| word(entry, 8)?.checked_add(word(entry, 32)?);
    let end = table.chunks_exact(ENTRY_BYTES).map(end).try_fold(0, |last, end| Some(last.max(end?)))?;
    Some((end, file.metadata().ok()?.len()))
}

/// What the dynamic loader says is wrong: the detail is in the source of its error.
pub(crate) fn loader_message(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The file of a loaded library whose file's name begins like this, where the system reports what is loaded.
pub(crate) fn loaded_file(name: &str) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    // A line ends with the path, where it has one.
    let path = |line: &str| line.find('/').map(|start| PathBuf::from(&line[start..]));
    let is_it =
        |path: &PathBuf| path.file_name().is_some_and(|found| found.to_string_lossy().starts_with(name));
    maps.lines().filter_map(path).find(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_files::Scratch;

    #[test]
    fn nodes_are_counted_once() {
        let folder = Scratch::new().unwrap();
        for (cpu, node) in [(0, Some(0)), (1, Some(1)), (2, Some(1)), (3, None)] {
            let own = folder.path().join(format!("cpu{cpu}"));
            std::fs::create_dir_all(own.join("cache")).unwrap();
            node.iter()
                .for_each(|node: &usize| std::fs::create_dir(own.join(format!("node{node}"))).unwrap());
        }
        let nodes =
            [&[][..], &[0], &[0, 1, 2], &[1, 2], &[3, 9]].map(|cpus| numa_nodes_below(folder.path(), cpus));
        assert_eq!(nodes, [1, 1, 2, 1, 1]);
    }

    #[test]
    fn anonymous_files_hold_their_content() {
        let file = AnonymousFile::new(b"content").unwrap();
        let other = AnonymousFile::new(b"other").unwrap();
        assert_ne!(file.path(), other.path());
        assert_eq!(std::fs::read(file.path()).unwrap(), b"content");
        assert_eq!(std::fs::read(other.path()).unwrap(), b"other");
    }

    #[test]
    fn files_that_are_cut_off_are_told_from_others() {
        let dir = Scratch::new().unwrap();
        let path = dir.path().join("library.so");
        let object =
            crate::cpu::testing::compile_object("int table[5000] = {1}; int f(void) { return table[7]; }");
        let check = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            check_library(&path)
        };
        assert_eq!(check(&object), Ok(()));
        let text = check(&object[..object.len() / 2]).unwrap_err();
        assert!(text.contains("library.so: the file is cut off: it has "), "{text}");
        for other in [&b""[..], b"\x7fELF", b"not a library", &object[..100]] {
            assert_eq!(check(other), Ok(()), "the loader says what is wrong with it");
        }
        assert_eq!(check_library(&dir.path().join("absent")), Ok(()));
        let text = check_library("/dev/zero".as_ref()).unwrap_err();
        assert_eq!(text, "/dev/zero: it is a device; a regular file is expected");
    }

    #[test]
    fn a_thread_can_be_pinned_where_it_may_run() {
        std::thread::spawn(|| {
            if let Some(&last) = allowed_cpus().last() {
                assert!(pin_current_thread(last));
                assert_eq!(allowed_cpus(), [last]);
                assert_eq!(current_cpu(), Some(last));
            }
            assert!(!pin_current_thread(usize::MAX));
        })
        .join()
        .unwrap();
    }
}
