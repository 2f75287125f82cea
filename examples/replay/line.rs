//! One line of an access log, in Apache's common or combined format.
//!
//! ```text
//! 192.0.2.7 - anna [17/May/2015:10:05:03 +0200] "GET / HTTP/1.1" 200 512 "referer" "user agent"
//! ```

/// The client and the time of a request.
#[derive(Debug, PartialEq)]
pub(crate) struct Line<'a> {
    /// The first field of the line: an address or a host name.
    pub(crate) client: &'a str,
    /// The time, in seconds since the Unix epoch.
    pub(crate) time: u64,
}

impl<'a> Line<'a> {
    /// Parses a line. Returns `None` if the line is in another format.
    ///
    /// The user's name, the request and everything after the size may contain any bytes, including spaces.
    pub(crate) fn parse(line: &'a [u8]) -> Option<Self> {
        let (client, rest) = split(line, b' ')?;
        let (_identity, rest) = split(rest, b' ')?;
        let at = rest.windows(STAMP).position(|at| at.starts_with(b" [") && at.ends_with(b"] \""))?;
        let (time, request) = (&rest[at + 2..at + 2 + TIME], &rest[at + STAMP..]);
        let rest = request.get(closing_quote(request)? + 1..)?.strip_prefix(b" ")?;
        let (status, rest) = split(rest, b' ')?;
        let size = rest.split(|byte| *byte == b' ').next()?;
        let known = status.len() == 3 && number(status).is_some() && (size == b"-" || number(size).is_some());
        let printable = !client.is_empty() && client.iter().all(u8::is_ascii_graphic);
        if !known || !printable {
            return None;
        }
        Some(Self { client: std::str::from_utf8(client).ok()?, time: unix_time(time.try_into().ok()?)? })
    }
}

/// The length of a time: `17/May/2015:10:05:03 +0200`.
const TIME: usize = 26;
/// The length of a time with its delimiters: ` [time] "`.
const STAMP: usize = TIME + 5;

const MONTHS: [&[u8]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// Converts a time of the log to Unix time. Years from 1970 to 2500 are accepted.
fn unix_time(time: &[u8; TIME]) -> Option<u64> {
    let separators = [(2, b'/'), (6, b'/'), (11, b':'), (14, b':'), (17, b':'), (20, b' ')];
    let west = match time[21] {
        b'+' => false,
        b'-' => true,
        _ => return None,
    };
    if separators.iter().any(|(at, byte)| time[*at] != *byte) {
        return None;
    }
    let field = |from: usize, to: usize| number(&time[from..to]);
    let month = MONTHS.iter().position(|name| *name == &time[3..6])? as u64 + 1;
    let (day, year) = (field(0, 2)?, field(7, 11)?);
    let (hour, minute, second) = (field(12, 14)?, field(15, 17)?, field(18, 20)?);
    let (zone_hour, zone_minute) = (field(22, 24)?, field(24, 26)?);
    // Second 60 is a leap second.
    let clock = hour < 24 && minute < 60 && second <= 60 && zone_hour < 24 && zone_minute < 60;
    if !clock || !(1970..=2500).contains(&year) || day == 0 || day > days_in(month, year) {
        return None;
    }
    let months: u64 = (1..month).map(|month| days_in(month, year)).sum();
    let leap_days = |before: u64| (before - 1) / 4 - (before - 1) / 100 + (before - 1) / 400;
    let years = (year - 1970) * 365 + leap_days(year) - leap_days(1970);
    let local = (years + months + day - 1) * 86_400 + hour * 3_600 + minute * 60 + second;
    let offset = zone_hour * 3_600 + zone_minute * 60;
    if west { Some(local + offset) } else { local.checked_sub(offset) }
}

fn days_in(month: u64, year: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 => 28 + u64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == at)?;
    Some((&text[..end], &text[end + 1..]))
}

/// Returns the position of the quote that ends a quoted string. An escaped quote (`\"`) does not end the string.
fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut escaped = false;
    text.iter().position(|byte| {
        let closes = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        closes
    })
}

/// Parses a number that consists of digits only: no sign and no space.
fn number(digits: &[u8]) -> Option<u64> {
    let plain = digits.iter().all(u8::is_ascii_digit);
    plain.then(|| std::str::from_utf8(digits).ok()?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: &str = r#""GET / HTTP/1.1" 200 512 "-" "curl""#;

    fn time(time: &str) -> Option<u64> {
        let line = format!("::1 - - [{time}] {REST}");
        Line::parse(line.as_bytes()).map(|line| line.time)
    }

    #[test]
    fn lines_of_both_formats() {
        for client in ["192.0.2.7", "2001:db8::1", "::ffff:192.0.2.7", "host.example.org", "-"] {
            for line in [
                r#"- - [01/Jan/1970:00:00:07 +0000] "GET / HTTP/1.1" 200 512 "-" "curl""#,
                r#"- - [01/Jan/1970:00:00:07 +0000] "GET / HTTP/1.1" 304 -"#,
                r#"- - [01/Jan/1970:00:00:07 +0000] "say \"200\"" 400 0"#,
                r#"- - [01/Jan/1970:00:00:07 +0000] "\\" 400 0 "half a"#,
                r#"- - [01/Jan/1970:00:00:07 +0000] "" 408 -"#,
                r#"- an na [x] [01/Jan/1970:00:00:07 +0000] "-" 408 -"#,
            ] {
                let line = format!("{client} {line}");
                assert_eq!(Line::parse(line.as_bytes()), Some(Line { client, time: 7 }), "{line}");
            }
        }
    }

    #[test]
    fn fields_may_have_bytes_that_are_no_text_but_a_client_may_not() {
        let line = b"::1 - \xff [01/Jan/1970:00:00:07 +0000] \"GET /\xfe\" 200 5 \"\xff\" \"\x80\"";
        assert_eq!(Line::parse(line), Some(Line { client: "::1", time: 7 }));
        assert_eq!(Line::parse(&[b"\xff", &line[3..]].concat()), None);
    }

    #[test]
    fn times_are_unix_times_in_any_zone() {
        for (text, unix) in [
            ("17/May/2015:10:05:03 +0000", 1_431_857_103),
            ("17/May/2015:12:05:03 +0200", 1_431_857_103),
            ("17/May/2015:04:35:03 -0530", 1_431_857_103),
            ("18/May/2015:00:05:03 +1400", 1_431_857_103),
            ("29/Feb/2000:00:00:00 +0000", 951_782_400),
            ("29/Feb/2024:23:59:60 +0000", 1_709_251_200),
            ("31/Dec/2499:23:59:59 +0000", 16_725_225_599),
        ] {
            assert_eq!(time(text), Some(unix), "{text}");
        }
    }

    #[test]
    fn invalid_times_are_rejected() {
        for text in [
            "29/Feb/2015:10:05:03 +0000",
            "29/Feb/2100:10:05:03 +0000",
            "31/Apr/2015:10:05:03 +0000",
            "00/May/2015:10:05:03 +0000",
            "32/May/2015:10:05:03 +0000",
            "17/Mai/2015:10:05:03 +0000",
            "17/May/2015:24:05:03 +0000",
            "17/May/2015:10:60:03 +0000",
            "17/May/2015:10:05:61 +0000",
            "17/May/2015:10:05:03 +2400",
            "17/May/2015:10:05:03 +0060",
            "17/May/2015:10:05:03  0000",
            "17-May-2015:10:05:03 +0000",
            "+7/May/2015:10:05:03 +0000",
            "17/May/1969:10:05:03 +0000",
            "01/Jan/1970:00:00:00 +0200",
            "17/May/9999:10:05:03 +0000",
            "17/May/2015:10:05:03",
        ] {
            assert_eq!(time(text), None, "{text}");
        }
    }

    #[test]
    fn invalid_lines_are_rejected() {
        let whole = format!("::1 - - [17/May/2015:10:05:03 +0000] {REST}");
        let (size, _) = whole.split_at(whole.find("512").unwrap());
        for end in 0..size.len() {
            assert_eq!(Line::parse(&whole.as_bytes()[..end]), None, "{}", &whole[..end]);
        }
        for line in [
            " ",
            "{\"client\":\"::1\"}",
            " - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 5",
            "::1 - - [17/May/2015:10:05:03 +0000] GET / 200 5",
            "::1 - - [17/May/2015:10:05:03 +0000] \"GET /\" OK 5",
            "::1 - - [17/May/2015:10:05:03 +0000] \"GET /\" 20 5",
            "::1 - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 5kB",
            "::1 - - [17/May/2015:10:05:03 +0000] \"GET /\" 200  5",
        ] {
            assert_eq!(Line::parse(line.as_bytes()), None, "{line}");
        }
    }
}
