use super::*;

fn edit(verdict: Verdict) -> wit::Edit {
    match verdict.encode() {
        wit::Verdict::Edit(edit) => edit,
        other => panic!("no edit: {other:?}"),
    }
}

#[test]
fn nothing_said_is_pass() {
    assert!(matches!(Verdict::default().encode(), wit::Verdict::Pass));
}

#[test]
fn all_wins_over_single_records() {
    let mut verdict = Verdict::default();
    verdict.drop(3);
    verdict.drop_all();
    assert!(matches!(verdict.encode(), wit::Verdict::DropAll));
    let mut verdict = Verdict::default();
    verdict.reject_all(7, &"é".repeat(200));
    let wit::Verdict::RejectAll(refusal) = verdict.encode() else { panic!("no refusal") };
    assert_eq!((refusal.code, refusal.reason.len()), (7, 256));
}

#[test]
fn positions_ascend_whatever_the_order_of_calls() {
    let mut verdict = Verdict::default();
    verdict.set_key(5, Some(b"five"));
    verdict.add_header(2, "a", b"1");
    verdict.drop(9);
    verdict.add_header(2, "b", b"2");
    verdict.set_value(5, None);
    verdict.drop(2);
    let edit = edit(verdict);
    assert_eq!(edit.at, [2, 5, 5, 9]);
    assert_eq!(edit.op, [DROP, SET_KEY, SET_VALUE, DROP]);
    assert_eq!(edit.arg, [0, 0, NULL, 0]);
}

#[test]
fn the_first_drop_or_rejection_stands_alone() {
    let mut verdict = Verdict::default();
    verdict.route(0, "a/b");
    verdict.reject(0, 4, "no");
    verdict.drop(0);
    verdict.set_key(0, None);
    let edit = edit(verdict);
    assert_eq!((edit.at, edit.op), (vec![0], vec![REJECT]));
    assert_eq!(edit.rejections[0].reason, 1);
}

#[test]
fn the_value_of_a_header_follows_its_name() {
    let mut verdict = Verdict::default();
    verdict.route(0, "t");
    verdict.route(1, "t");
    verdict.route(2, "u");
    verdict.add_header(2, "name", b"value");
    let edit = edit(verdict);
    assert_eq!(edit.arg, [0, 0, 1, 2]);
    assert_eq!(edit.string_ends, [1, 2, 6, 11]);
    assert_eq!(edit.string_data, b"tunamevalue");
}

#[test]
fn an_emission_alone_is_an_edit() {
    let mut verdict = Verdict::default();
    verdict.emit(1, "audit", None, Some(b"v"), &[("h", None)]);
    let edit = edit(verdict);
    assert!(edit.at.is_empty());
    assert_eq!((edit.emissions[0].key, edit.emissions[0].headers), (NULL, 2));
    assert_eq!(edit.string_data, b"auditv\x01\0\x01\0\xff\xff\xff\xffh");
}

/// The bytes that docs/plugins.md works through.
#[test]
fn the_worked_example_of_the_documentation() {
    let index = [0x06, 0x8000_0006, 0x07, 0x02, 0x0e, 0x10];
    let data = b"test-17{}{\"total\":12}{}";
    let batch = crate::Batch::new(3, wit::Fields::KEY | wit::Fields::VALUE, &index, data).unwrap();
    assert_eq!(batch.keys().iter().collect::<Vec<_>>(), [Some(&b"test-1"[..]), None, Some(b"7")]);
    let values: Vec<_> = batch.records().filter_map(|record| record.value()).collect();
    assert_eq!(values, [&b"{}"[..], b"{\"total\":12}", b"{}"]);

    let mut verdict = Verdict::default();
    verdict.drop(0);
    verdict.reject(2, 1, "an order has a total");
    let edit = edit(verdict);
    assert_eq!((edit.at, edit.op, edit.arg), (vec![0, 2], vec![0, 1], vec![0, 0]));
    assert_eq!((edit.string_ends, edit.string_data), (vec![20], b"an order has a total".to_vec()));
    let rejection = &edit.rejections[0];
    assert_eq!((rejection.code, rejection.retry_after_ms, rejection.reason), (1, 0, 0));
    assert_eq!(headers_item(&[("a", Some(b"xy"))]), [1, 0, 1, 0, 2, 0, 0, 0, 0x61, 0x78, 0x79]);
}
