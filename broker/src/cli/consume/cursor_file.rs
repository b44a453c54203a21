//! A file that remembers where a reader is.

use std::{
    io,
    path::{Path, PathBuf},
};

use tidegate_protocol::cursor::Cursor;

use super::super::{Error, component};

/// A cursor in a file.
#[derive(Debug)]
pub(super) struct CursorFile {
    path: PathBuf,
    saved: Option<String>,
}

impl CursorFile {
    /// Reads it, if it is there.
    pub(super) fn open(path: PathBuf) -> Result<Self, Error> {
        let saved = match std::fs::read_to_string(&path) {
            Ok(text) => Some(checked(&path, text.trim())?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(Error::file("read", &path, source)),
        };
        Ok(Self { path, saved })
    }

    /// What it says.
    pub(super) fn cursor(&self) -> Option<&str> {
        self.saved.as_deref()
    }

    /// Replaces it, whole or not at all.
    pub(super) fn save(&mut self, cursor: &str) -> Result<(), Error> {
        if self.saved.as_deref() == Some(cursor) {
            return Ok(());
        }
        component::replace(&self.path, format!("{cursor}\n").as_bytes())?;
        self.saved = Some(cursor.to_owned());
        Ok(())
    }
}

fn checked(path: &Path, text: &str) -> Result<String, Error> {
    match text.parse::<Cursor>() {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(Error::Config(format!("{}: {error}; remove the file to start anew", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_is_read_again_and_damage_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cursor");
        let cursor = Cursor::Topic { topic_id: 17, next_offset: 3 }.to_string();
        let mut file = CursorFile::open(path.clone()).unwrap();
        assert_eq!(file.cursor(), None);
        file.save(&cursor).unwrap();
        assert_eq!(CursorFile::open(path.clone()).unwrap().cursor(), Some(cursor.as_str()));
        std::fs::write(&path, "half a cur").unwrap();
        assert_eq!(CursorFile::open(path).unwrap_err().exit_code(), 64);
    }
}
