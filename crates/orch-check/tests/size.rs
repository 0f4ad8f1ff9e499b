//! The crate is to be read in an evening: how many lines it has.

use std::path::Path;

/// The most lines of code, without tests, comments and blank lines. What is added has to be worth its lines.
const MOST: usize = 1677;

#[test]
fn the_crate_does_not_grow() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut total = 0;
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.lines().take_while(|line| *line != "#[cfg(test)]").map(str::trim);
        let count = code.filter(|line| !line.is_empty() && !line.starts_with("//")).count();
        println!("| {count} | `{}` |", path.file_name().unwrap().display());
        total += count;
    }
    println!("{total} lines");
    assert!(total <= MOST, "{total} lines; at most {MOST}");
}
