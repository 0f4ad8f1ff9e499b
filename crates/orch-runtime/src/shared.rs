//! Constants that several executables of a process have in common, as the same model compiled for several sizes has.

use bytes::Bytes;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// Smaller ones are not worth a hash.
const LEAST_BYTES: usize = 4096;

/// Content in use, by its hash.
static IN_USE: LazyLock<Mutex<HashMap<blake3::Hash, Weak<Bytes>>>> = LazyLock::new(Mutex::default);

/// A reader of content that others read, too.
struct Shared(Arc<Bytes>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The same bytes; if equal ones are in use already, those, so that memory holds them once.
pub fn held_once(bytes: Bytes) -> Bytes {
    if bytes.len() < LEAST_BYTES {
        return bytes;
    }
    let key = blake3::hash(&bytes);
    let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    let known = in_use.get(&key).and_then(Weak::upgrade);
    let held = known.unwrap_or_else(|| {
        in_use.retain(|_, other| other.strong_count() > 0);
        let held = Arc::new(bytes);
        in_use.insert(key, Arc::downgrade(&held));
        held
    });
    Bytes::from_owner(Shared(held))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_content_is_held_once_while_it_is_in_use() {
        let content = |value: u8| Bytes::from(vec![value; 2 * LEAST_BYTES]);
        let (first, second, other) = (held_once(content(1)), held_once(content(1)), held_once(content(2)));
        assert_eq!(first, content(1));
        assert_eq!(first.as_ptr(), second.as_ptr());
        assert_ne!(first.as_ptr(), other.as_ptr());
        let key = blake3::hash(&first);
        drop((first, second));
        assert!(IN_USE.lock().unwrap()[&key].upgrade().is_none());
    }
}
