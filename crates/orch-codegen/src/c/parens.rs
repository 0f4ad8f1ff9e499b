//! Parentheses around C text.

/// The expression without the parentheses around all of it.
pub fn strip_parens(text: &str) -> &str {
    let Some(inner) = text.strip_prefix('(').and_then(|t| t.strip_suffix(')')) else { return text };
    let mut depth = 0i32;
    for byte in inner.bytes() {
        depth += i32::from(byte == b'(') - i32::from(byte == b')');
        if depth < 0 {
            return text;
        }
    }
    inner
}

/// The text in exactly one pair of parentheses.
pub fn parens(text: &str) -> String {
    format!("({})", strip_parens(text))
}
