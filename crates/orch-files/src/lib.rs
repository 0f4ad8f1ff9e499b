//! Files that are written whole or not at all ([`whole_file`]), files that are read whole ([`open_regular`]), and folders whose content no other user can have put there
//! ([`CacheFolder`]).
//!
//! A cache holds machine code that is run later. Three rules keep other users' code and damaged code out of it:
//! 1. a folder of the cache belongs to this user (or root), and nobody else may write to it ([`CacheFolder::open`]);
//! 2. so does each file when it is opened ([`CacheFolder::read`]), whatever happened to the folder in the meantime;
//! 3. a sealed file ends with a hash of its name and its content ([`CacheFolder::read_sealed`]): a file that was cut short, changed
//!    or moved counts as absent.
//!
//! Files under construction have random names and are made exclusively, in a folder of their own below the cache's; what a
//! process that was killed leaves there is removed a day later.

mod folder;
mod ownership;
mod regular;
mod seal;
mod unfinished;
pub mod whole_file;

pub use folder::{CacheFolder, Scratch, default_cache_folder};
pub use ownership::FolderError;
pub use regular::open_regular;
pub use unfinished::remove_unfinished;
