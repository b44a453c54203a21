//! A file that remembers where a reader is.

use std::{
    io,
    path::{Path, PathBuf},
};

use tidegate_protocol::{cursor::Cursor, error::Code};

use super::super::{Error, component};

/// A cursor in a file.
#[derive(Debug)]
pub(super) struct CursorFile {
    path: PathBuf,
    saved: Option<String>,
}

impl CursorFile {
    /// Reads it, if it is there, and makes sure that it can be replaced: that it cannot must not come out after records
    /// were printed which it should cover.
    pub(super) fn open(path: PathBuf) -> Result<Self, Error> {
        let saved = match std::fs::read_to_string(&path) {
            Ok(text) => Some(checked(&path, text.trim())?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(Error::file("read", &path, source)),
        };
        component::check_replaceable(&path)?;
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
        Err(error) => Err(Error::argument(Code::CursorInvalid, format!("{}: {error}", path.display()))
            .then("Remove the file to start anew.")),
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
        let error = CursorFile::open(path).unwrap_err();
        assert!(error.text().starts_with("CURSOR_INVALID: ") && error.exit_code() == 64, "{}", error.text());
    }

    #[test]
    fn that_it_cannot_be_written_is_known_before_anything_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let error = CursorFile::open(folder.path().join("no-such-folder/cursor")).unwrap_err();
        assert!(error.text().starts_with("IO: cannot write "), "{}", error.text());
        assert_eq!(CursorFile::open(folder.path().to_owned()).unwrap_err().exit_code(), 74, "a folder");
        CursorFile::open(folder.path().join("cursor")).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the try leaves nothing behind");
    }
}
