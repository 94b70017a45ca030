//! The payload of an event, decoded by hand: fields 1 to 6, all of them length-delimited.

/// The fields of one event; texts point into the record.
#[derive(Default)]
pub struct Event<'a> {
    pub game: &'a str,
    pub gamer: &'a str,
    pub time_us: i64,
    pub device: &'a str,
    pub custom_0: Option<&'a str>,
    pub custom_1: Option<&'a str>,
}

/// The event; None: the payload ends within a field, or has a field of another kind.
pub fn decode(payload: &[u8]) -> Option<Event<'_>> {
    let mut event = Event::default();
    let mut at = 0;
    while at < payload.len() {
        let tag = varint(payload, &mut at)?;
        if tag & 7 != 2 {
            return None;
        }
        let content = delimited(payload, &mut at)?;
        match tag >> 3 {
            1 => event.game = std::str::from_utf8(content).ok()?,
            2 => event.gamer = std::str::from_utf8(content).ok()?,
            3 => event.time_us = timestamp_us(content)?,
            4 => event.device = std::str::from_utf8(content).ok()?,
            5 => event.custom_0 = Some(std::str::from_utf8(content).ok()?),
            6 => event.custom_1 = Some(std::str::from_utf8(content).ok()?),
            _ => {}
        }
    }
    Some(event)
}

/// A `google.protobuf.Timestamp` in microseconds.
fn timestamp_us(content: &[u8]) -> Option<i64> {
    let (mut at, mut seconds, mut nanos) = (0, 0i64, 0i64);
    while at < content.len() {
        let tag = varint(content, &mut at)?;
        let value = varint(content, &mut at)? as i64;
        match tag >> 3 {
            1 => seconds = value,
            _ => nanos = value,
        }
    }
    Some(seconds * 1_000_000 + nanos / 1_000)
}

#[inline]
fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let (mut value, mut shift) = (0u64, 0);
    loop {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
        shift += 7;
        if shift > 63 {
            return None;
        }
    }
}

#[inline]
fn delimited<'a>(bytes: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    let length = varint(bytes, at)? as usize;
    let content = bytes.get(*at..*at + length)?;
    *at += length;
    Some(content)
}
