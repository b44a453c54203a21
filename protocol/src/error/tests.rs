//! The table is one: every number, name and text stands for itself.

use std::collections::HashSet;

use super::*;

#[test]
fn numbers_ascend_and_names_are_unique() {
    assert!(TABLE.is_sorted_by(|one, next| one.code.number() < next.code.number()));
    let names: HashSet<_> = TABLE.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), TABLE.len());
    for row in TABLE {
        assert!(row.name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'), "{}", row.name);
    }
}

#[test]
fn every_text_is_a_sentence() {
    for row in TABLE {
        for text in [row.cause, row.effect, row.next] {
            assert!(text.len() > 8 && text.trim() == text, "{}: {text:?}", row.name);
            assert!(text.ends_with('.'), "{}: {text:?}", row.name);
        }
    }
}

#[test]
fn a_code_is_found_by_number_and_name() {
    for row in TABLE {
        assert_eq!(Code::from_number(row.code.number()), Some(row.code));
        assert_eq!(Code::from_text(row.name), Some(row.code));
        assert_eq!(Code::from_text(&format!(" {} ", row.name.to_lowercase())), Some(row.code));
        assert_eq!(Code::from_text(&row.code.number().to_string()), Some(row.code));
        assert_eq!((row.code.row(), row.code.name(), row.code.to_string().as_str()), (row, row.name, row.name));
    }
    assert_eq!((Code::from_number(0), Code::from_number(999), Code::from_text("")), (None, None, None));
}
