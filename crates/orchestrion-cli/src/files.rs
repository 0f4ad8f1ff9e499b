//! Files that commands write: each output has one of its own, and none replaces what is read.

use crate::print;
use orchestrion::manifest::Port;
use orchestrion::{Error, Tensor, artifact, npy, whole_file};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The exit code of usage errors, as clap has it.
const USAGE: u8 = 2;

/// Why a command does not begin.
pub enum Refusal {
    /// The arguments contradict each other.
    Usage(String),
    /// A file or folder cannot be written.
    Error(Error),
}

impl Refusal {
    /// Prints what is wrong with the arguments.
    pub fn report(self) -> Result<ExitCode, Error> {
        match self {
            Self::Usage(text) => {
                print::error_line(format_args!("{text}"));
                Ok(ExitCode::from(USAGE))
            }
            Self::Error(error) => Err(error),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Refuses outputs of which one is an input, however the two paths are written, or two are one file.
pub fn check_outputs<'a>(
    inputs: impl IntoIterator<Item = &'a Path>,
    outputs: &[PathBuf],
) -> Result<(), Refusal> {
    let inputs: Vec<(&Path, FileIdentity)> =
        inputs.into_iter().map(|input| (input, FileIdentity::of(input))).collect();
    let mut earlier: Vec<(&Path, FileIdentity)> = Vec::new();
    for output in outputs {
        let identity = FileIdentity::of(output);
        let same = |known: &[(&Path, FileIdentity)]| {
            known
                .iter()
                .find(|(_, known)| known.is_same(&identity))
                .map(|(path, _)| path.display().to_string())
        };
        let shown = output.display();
        if let Some(input) = same(&inputs) {
            let text = format!(
                "the output {shown} would replace the input {input}; choose another name for the output"
            );
            return Err(Refusal::Usage(text));
        }
        if let Some(other) = same(&earlier) {
            return Err(Refusal::Usage(format!(
                "the outputs {other} and {shown} are one file; choose another name for one"
            )));
        }
        earlier.push((output, identity));
    }
    Ok(())
}

/// Refuses to write below a folder that is read.
pub fn check_outside(output: &Path, folder: &Path, what: &str) -> Result<(), Refusal> {
    let (path, below) = (resolved(output), resolved(folder));
    if !path.starts_with(&below) {
        return Ok(());
    }
    let (output, folder) = (output.display(), folder.display());
    Err(Refusal::Usage(format!("{output} lies in {what} {folder}, which is read; choose a file elsewhere")))
}

/// Refuses to replace a file that is no executable: it may be weights of the model, or anything else that cannot be made again.
pub fn check_replaces_executable(output: &Path) -> Result<(), Refusal> {
    let is_other = std::fs::metadata(output).is_ok_and(|data| data.is_file() && data.len() > 0)
        && !starts_with(output, artifact::MAGIC).unwrap_or(true);
    if is_other {
        let output = output.display();
        return Err(Refusal::Usage(format!(
            "{output} exists and is no .orc file; remove it, or choose another name for the output"
        )));
    }
    Ok(())
}

fn starts_with(path: &Path, magic: &[u8]) -> std::io::Result<bool> {
    use std::io::Read;
    let mut start = Vec::new();
    std::fs::File::open(path)?.take(magic.len() as u64).read_to_end(&mut start)?;
    Ok(start == magic)
}

/// What tells a file from others, whatever its path.
struct FileIdentity {
    /// The device and number of a file that exists.
    inode: Option<(u64, u64)>,
    path: PathBuf,
}

impl FileIdentity {
    fn of(path: &Path) -> Self {
        #[cfg(unix)]
        let inode = {
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(path).ok().filter(|data| data.is_file()).map(|data| (data.dev(), data.ino()))
        };
        #[cfg(not(unix))]
        let inode = None;
        Self { inode, path: resolved(path) }
    }

    fn is_same(&self, other: &Self) -> bool {
        self.path == other.path || self.inode.is_some() && self.inode == other.inode
    }
}

/// A path without links; of what does not exist, below the folder that does.
fn resolved(path: &Path) -> PathBuf {
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if parent.as_os_str().is_empty() => resolved(Path::new(".")).join(name),
        (Some(parent), Some(name)) => resolved(parent).join(name),
        _ => path.to_owned(),
    }
}

/// The most bytes of a file's name; systems allow 255.
const NAME_BYTES: usize = 200;

/// A file name for each of these names of a model, in order: without what file names must not have, none hidden, none longer
/// than systems allow, and no two that some system takes for one. Names that need no change keep theirs.
pub fn names<'a>(of: impl IntoIterator<Item = &'a str>, extension: &str) -> Vec<String> {
    let of: Vec<&str> = of.into_iter().collect();
    let mut taken = BTreeSet::new();
    let mut found = vec![None; of.len()];
    for keeps in [true, false] {
        for (name, found) in of.iter().zip(&mut found).filter(|(_, found)| found.is_none()) {
            let plain = plain(name);
            if keeps != (plain == **name) {
                continue;
            }
            let numbered = |number: usize| {
                let end = if number == 0 { extension.to_owned() } else { format!(".{number}{extension}") };
                let kept = (0..=NAME_BYTES - end.len()).rev().find(|&at| plain.is_char_boundary(at));
                format!("{}{end}", &plain[..kept.unwrap_or(0).min(plain.len())])
            };
            *found = (0..).map(numbered).find(|name| taken.insert(name.to_lowercase()));
        }
    }
    found.into_iter().flatten().collect()
}

/// A name with `_` for what file names must not have. It hides no file.
fn plain(name: &str) -> String {
    let plain: String =
        name.chars().map(|c| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
    match plain.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None if plain.is_empty() => "_".to_owned(),
        None => plain,
    }
}

/// Files of a folder for tensors, checked before they are computed.
pub struct TensorFiles {
    folder: PathBuf,
    paths: Vec<PathBuf>,
    /// Folders that did not exist; those that stay empty are removed.
    made: Vec<PathBuf>,
}

impl TensorFiles {
    /// One `NAME.npy` for each tensor, in a folder that is made if need be.
    pub fn plan<'a>(
        folder: &Path,
        ports: &[Port],
        inputs: impl IntoIterator<Item = &'a Path>,
    ) -> Result<Self, Refusal> {
        let names = names(ports.iter().map(|port| port.name.as_str()), ".npy");
        for (port, name) in ports.iter().zip(&names) {
            if *name != format!("{}.npy", port.name) {
                let folder = folder.display();
                print::note_line(format_args!(
                    "`{}` is written to {folder}/{name}",
                    orchestrion::message::name(&port.name)
                ));
            }
        }
        let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
        check_outputs(inputs, &paths)?;
        let missing = folder.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
        let made = missing.map(Path::to_owned).collect();
        let planned = Self { folder: folder.to_owned(), paths, made };
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::File { path, source }
        };
        planned.make_folder().map_err(failed(folder))?;
        for path in &planned.paths {
            whole_file::check(path).map_err(failed(path))?;
        }
        Ok(planned)
    }

    fn make_folder(&self) -> std::io::Result<()> {
        match self.folder.metadata() {
            Ok(known) if !known.is_dir() => Err(std::io::ErrorKind::NotADirectory.into()),
            _ => std::fs::create_dir_all(&self.folder),
        }
    }

    /// Writes each tensor. One that cannot be written does not keep the others from it.
    pub fn save(&self, tensors: &[Tensor]) -> Result<(), Error> {
        let failed: Vec<String> = (self.paths.iter().zip(tensors))
            .filter_map(|(path, tensor)| {
                Some(format!("{}: {}", path.display(), npy::save(path, tensor).err()?))
            })
            .collect();
        if failed.is_empty() { Ok(()) } else { Err(Error::Input(failed.join("\n"))) }
    }
}

impl Drop for TensorFiles {
    fn drop(&mut self) {
        // Only empty folders can be removed, innermost first.
        self.made.iter().all(|folder| std::fs::remove_dir(folder).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_outputs_have_one_file() {
        let of = |given: &[&str]| names(given.iter().copied(), ".npy");
        assert_eq!(of(&["y", "b/c"]), ["y.npy", "b_c.npy"]);
        assert_eq!(of(&["a/b", "a_b", "a:b"]), ["a_b.1.npy", "a_b.npy", "a_b.2.npy"]);
        assert_eq!(of(&["a/b", "a_b", "a_b.1"]), ["a_b.2.npy", "a_b.npy", "a_b.1.npy"]);
        assert_eq!(of(&["Y", "y", "É", "é"]), ["Y.npy", "y.1.npy", "É.npy", "é.1.npy"]);
        assert_eq!(
            of(&["", ".", "..", "../../x", ".hidden"]),
            ["_.npy", "_.1.npy", "_..npy", "_._.._x.npy", "_hidden.npy"]
        );
        let long = "n".repeat(300);
        let wide = "层".repeat(300);
        let found = of(&[&long, &format!("{long}2"), &wide, &format!("{wide}x")]);
        assert!(
            found.iter().all(|name| name.len() <= NAME_BYTES && name.len() > NAME_BYTES - 8),
            "{found:?}"
        );
        assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), 4);
    }

    #[test]
    fn what_can_be_written_is_written() {
        let folder = std::env::temp_dir().join(format!("orchestrion-saved-{}", std::process::id()));
        let port = |name: &str| Port { name: name.to_owned(), dtype: "f32".to_owned(), shape: vec![1] };
        let ports = ["a", "b", "c"].map(port);
        let Ok(files) = TensorFiles::plan(&folder, &ports, []) else { panic!("all can be written") };
        std::fs::create_dir(folder.join("a.npy")).unwrap();
        std::fs::create_dir(folder.join("b.npy")).unwrap();
        let text = files.save(&[0.0f32, 1.0, 2.0].map(Tensor::scalar)).unwrap_err().to_string();
        assert!(text.contains("a.npy: ") && text.contains("\n") && text.contains("b.npy: "), "{text}");
        assert!(npy::read(&std::fs::read(folder.join("c.npy")).unwrap().into()).is_ok());
        std::fs::remove_dir_all(&folder).unwrap();
        let Ok(unused) = TensorFiles::plan(&folder.join("inner"), &ports, []) else { panic!("as before") };
        assert!(folder.join("inner").is_dir());
        drop(unused);
        assert!(!folder.exists(), "a run that fails leaves no folder");
    }

    #[cfg(unix)]
    #[test]
    fn files_are_recognised_however_they_are_written() {
        let folder = std::env::temp_dir().join(format!("orchestrion-same-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("sub")).unwrap();
        let at = |name: &str| folder.join(name);
        std::fs::write(at("model"), "m").unwrap();
        std::fs::hard_link(at("model"), at("hard")).unwrap();
        std::os::unix::fs::symlink("model", at("link")).unwrap();
        let usage = |inputs: &[&str], outputs: &[&str]| {
            let inputs: Vec<PathBuf> = inputs.iter().map(|name| at(name)).collect();
            let outputs: Vec<PathBuf> = outputs.iter().map(|name| at(name)).collect();
            matches!(check_outputs(inputs.iter().map(PathBuf::as_path), &outputs), Err(Refusal::Usage(_)))
        };
        for same in ["model", "./model", "sub/../model", "hard", "link"] {
            assert!(usage(&["model"], &[same]), "{same}");
            assert!(usage(&[same], &["model"]), "{same}");
        }
        assert!(!usage(&["model"], &["other", "sub/model"]));
        assert!(usage(&[], &["new", "sub/../new"]) && !usage(&[], &["new", "sub/new"]));
        assert!(check_outside(&at("sub/new/file"), &at("sub"), "the folder").is_err());
        assert!(check_outside(&at("subfile"), &at("sub"), "the folder").is_ok());
        assert!(check_replaces_executable(&at("model")).is_err());
        std::fs::write(at("model"), "ORCHEXE\n...").unwrap();
        assert!(check_replaces_executable(&at("model")).is_ok());
        assert!(check_replaces_executable(&at("new")).is_ok());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
