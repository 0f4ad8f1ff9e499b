//! Thread programs after a pass, for those who read what a pass does.

use crate::print::note_line;
use clap::Args;
use orchestrion::{DumpAfter, pass_names, whole_file};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// What to show of the passes.
#[derive(Args, Clone, Debug)]
pub struct DumpArguments {
    /// Show the thread program of each kernel after this pass: on standard error, or in files beside the sources with --emit-source
    #[arg(long, value_name = "PASS", value_parser = parse_pass)]
    dump_after: Option<String>,
}

impl DumpArguments {
    /// The library's option: texts go to files of this folder, `NAME.PASS.txt`, or to standard error.
    pub fn option(&self, folder: Option<&Path>) -> Option<DumpAfter> {
        let pass = self.dump_after.clone()?;
        let (folder, name) = (folder.map(Path::to_owned), pass.clone());
        let receive = move |kernel: &str, text: &str| match &folder {
            Some(folder) => write(&folder.join(format!("{kernel}.{name}.txt")), text),
            None => eprintln!("# {kernel} after {name}\n{text}"),
        };
        Some(DumpAfter { pass, receive: Arc::new(receive) })
    }
}

/// Writes a text; one that cannot be written is told of, and the sources beside it fail for the same reason.
fn write(path: &Path, text: &str) {
    let folder = path.parent().unwrap_or(Path::new("."));
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| whole_file::write(path, |file| file.write_all(text.as_bytes())));
    if let Err(error) = written {
        note_line(format_args!("{}: {error}", path.display()));
    }
}

fn parse_pass(text: &str) -> Result<String, String> {
    let names = pass_names();
    let known = names.contains(&text).then(|| text.to_owned());
    known.ok_or_else(|| format!("the passes are {}", names.join(", ")))
}
