//! Splits lines and elements into their parts.

pub(super) fn trimmed(text: &[u8]) -> &[u8] {
    let is_space = |byte: &u8| b" \t".contains(byte);
    match (text.iter().position(|byte| !is_space(byte)), text.iter().rposition(|byte| !is_space(byte))) {
        (Some(first), Some(last)) => &text[first..=last],
        _ => &[],
    }
}

/// Splits the text at each byte `at` that is not within quotes.
pub(super) fn split<'a>(text: &'a [u8], at: u8, quoted: &[bool]) -> Vec<&'a [u8]> {
    let (mut parts, mut start) = (Vec::new(), 0);
    for place in 0..text.len() {
        if text[place] == at && !quoted[place] {
            parts.push(&text[start..place]);
            start = place + 1;
        }
    }
    parts.push(&text[start..]);
    parts
}

pub(super) fn quoted_from_the_left(text: &[u8]) -> Vec<bool> {
    let (mut all, mut quoted, mut escaped) = (Vec::new(), false, false);
    for byte in text {
        let ends = *byte == b'"' && !escaped;
        all.push(quoted || ends);
        escaped = quoted && *byte == b'\\' && !escaped;
        quoted ^= ends;
    }
    all
}

pub(super) fn is_tchar(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

pub(super) fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(is_tchar)
}

/// Returns the content of the quotes, without the backslashes.
pub(super) fn unquoted(text: &[u8]) -> Option<Vec<u8>> {
    let mut inside = text.strip_prefix(b"\"")?.strip_suffix(b"\"")?.iter();
    let mut all = Vec::new();
    while let Some(byte) = inside.next() {
        match byte {
            b'"' => return None,
            b'\\' => all.push(*inside.next()?),
            _ => all.push(*byte),
        }
    }
    Some(all)
}
