//! What PTX says of itself, and the versions of it that a driver takes.
//!
//! PTX is text that the driver compiles for its device. It begins with directives for the version of the language and the
//! least compute capability:
//!
//! ```text
//! .version 9.0
//! .target sm_80
//! ```

use super::device::{Capability, Version};
use std::borrow::Cow;

/// The directives that PTX begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cuda) struct PtxHeader {
    /// The version of the PTX ISA that the text is written in.
    pub(in crate::cuda) version: Version,
    /// The least compute capability that it needs.
    pub(in crate::cuda) capability: Capability,
}

/// Major versions of the PTX ISA between which the meaning of text did not change. A minor version only adds to the language, a
/// major one may change what it has; 9.0 did not (decision 53).
const ALIKE: std::ops::RangeInclusive<u32> = 8..=9;

impl PtxHeader {
    /// The header of PTX; `None` if this is none.
    pub(in crate::cuda) fn of(code: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(code).ok()?;
        let mut lines =
            text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
        let (major, minor) = lines.next()?.strip_prefix(VERSION)?.trim().split_once('.')?;
        let version = Version { major: major.parse().ok()?, minor: minor.parse().ok()? };
        let number: u32 = lines.next()?.strip_prefix(".target sm_")?.parse().ok()?;
        Some(Self { version, capability: Capability::of_number(number) })
    }
}

/// The directive of the version.
const VERSION: &str = ".version ";

/// The newest version of the PTX ISA that a driver of this CUDA version compiles.
pub(in crate::cuda) fn newest(driver: Version) -> Version {
    let Version { major, minor } = driver;
    // CUDA 12.6 has the version of 12.5.
    let skipped = u32::from(major == 12 && minor > 5);
    Version { major: major.saturating_sub(4), minor: minor - skipped }
}

/// The text as a driver takes it that compiles versions up to `newest`: text of a later one is declared to be of that one, and
/// the driver rejects it if it needs what that lacks. `None` if the meaning of the text may differ between the two.
pub(in crate::cuda) fn for_version(code: &[u8], newest: Version) -> Option<Cow<'_, [u8]>> {
    let header = PtxHeader::of(code)?;
    if header.version <= newest {
        return Some(Cow::Borrowed(code));
    }
    if !ALIKE.contains(&header.version.major) || !ALIKE.contains(&newest.major) {
        return None;
    }
    let text = std::str::from_utf8(code).ok()?;
    let declared = format!("{VERSION}{}", header.version);
    Some(Cow::Owned(text.replacen(&declared, &format!("{VERSION}{newest}"), 1).into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "//\n// Generated, .version 1.0\n//\n\n.version 9.2\n.target sm_80\n.address_size 64\n";

    fn version(major: u32, minor: u32) -> Version {
        Version { major, minor }
    }

    #[test]
    fn headers_are_read() {
        let header = PtxHeader::of(TEXT.as_bytes()).unwrap();
        assert_eq!((header.version, header.capability.to_string()), (version(9, 2), "8.0".to_owned()));
        let of = |text: &str| PtxHeader::of(text.as_bytes());
        assert_eq!(of(".version 8.7\n.target sm_120\n").unwrap().capability.to_string(), "12.0");
        for text in [
            "",
            "\x7fELF\x02\x01",
            ".version 9\n.target sm_80",
            ".version 9.0\n",
            ".target sm_80\n.version 9.0\n",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
        assert_eq!(PtxHeader::of(b".version 9.0\n.target sm_80\n\xff"), None);
    }

    /// By the table of releases in the PTX ISA's manual.
    #[test]
    fn drivers_take_the_version_of_their_release() {
        let expected = [
            ((12, 0), (8, 0)),
            ((12, 4), (8, 4)),
            ((12, 5), (8, 5)),
            ((12, 6), (8, 5)),
            ((12, 7), (8, 6)),
            ((12, 8), (8, 7)),
            ((12, 9), (8, 8)),
            ((13, 0), (9, 0)),
            ((13, 2), (9, 2)),
        ];
        for (driver, ptx) in expected {
            assert_eq!(newest(version(driver.0, driver.1)), version(ptx.0, ptx.1), "{driver:?}");
        }
    }

    #[test]
    fn later_versions_are_declared_as_what_the_driver_takes() {
        let taken = |text: &str, newest| {
            for_version(text.as_bytes(), newest).map(|text| String::from_utf8(text.into_owned()).unwrap())
        };
        assert_eq!(taken(TEXT, version(9, 2)).unwrap(), TEXT);
        assert_eq!(taken(TEXT, version(10, 0)).unwrap(), TEXT);
        assert_eq!(taken(TEXT, version(8, 7)).unwrap(), TEXT.replace("9.2", "8.7"));
        // Of a later major version the meaning is not known.
        let later = TEXT.replace("9.2", "10.0");
        assert_eq!(taken(&later, version(9, 0)), None);
        assert_eq!(taken(&later, version(10, 0)).unwrap(), later);
    }
}
