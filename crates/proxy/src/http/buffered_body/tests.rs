//! Buffered prefixes of bodies, and the forwarded rest.

use std::net::Ipv4Addr;

use super::*;

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn buffer_pieces(memory: &Rc<BufferMemory>, pieces: &[&[u8]]) -> BufferedPrefix {
    let mut prefix = BufferedPrefix::new(memory.clone(), CLIENT);
    for piece in pieces {
        let data = BodyPiece::Data(Bytes::copy_from_slice(piece));
        assert!(prefix.append_piece(Some(data), false).is_ok());
    }
    prefix
}

async fn next_piece(source: &mut PrefixedSource<'_>) -> Option<BodyPiece> {
    poll_fn(|cx| source.poll_next(cx)).await.unwrap()
}

#[test]
fn an_excerpt_reports_if_the_body_may_be_longer() {
    let memory = Rc::default();
    let mut prefix = buffer_pieces(&memory, &[b"ab", b"", b"cde"]);
    let excerpt = |prefix: &BufferedPrefix, max_bytes| {
        let BufferedExcerpt { bytes, is_partial } = prefix.excerpt(max_bytes);
        (String::from_utf8(bytes.to_vec()).unwrap(), is_partial)
    };
    assert_eq!(excerpt(&prefix, 9), ("abcde".to_owned(), true));
    prefix.append_piece(None, true).unwrap();
    for (max_bytes, text, is_partial) in
        [(9, "abcde", false), (5, "abcde", false), (3, "abc", true), (1, "a", true)]
    {
        assert_eq!(excerpt(&prefix, max_bytes), (text.to_owned(), is_partial));
    }
}

#[tokio::test]
async fn a_forwarded_prefix_releases_its_memory_piece_by_piece() {
    let memory: Rc<BufferMemory> = Rc::default();
    let body: Vec<u8> = (0..BLOCK_BYTES * 2 + 7).map(|index| index.to_le_bytes()[0]).collect();
    let small_pieces: Vec<&[u8]> = body.chunks(99).collect();
    let mut prefix = buffer_pieces(&memory, &small_pieces);
    let trailers = Bytes::from_static(b"a: b\r\n\r\n");
    prefix.append_piece(Some(BodyPiece::Trailers(trailers.clone())), true).unwrap();
    assert_eq!(
        prefix.excerpt(usize::MAX),
        BufferedExcerpt { bytes: body.clone().into(), is_partial: false }
    );
    assert_eq!(memory.total_bytes.get(), body.len() + trailers.len());

    let mut source = prefix.into_source(BodySource::Empty);
    let mut forwarded_bytes = Vec::new();
    for buffered_bytes in [BLOCK_BYTES + 7, 7, 0] {
        assert!(!source.is_complete());
        let Some(BodyPiece::Data(data)) = next_piece(&mut source).await else { panic!("no data") };
        forwarded_bytes.extend_from_slice(&data);
        assert_eq!(memory.total_bytes.get(), buffered_bytes + trailers.len());
    }
    assert!(forwarded_bytes == body && !source.is_exhausted());
    let Some(BodyPiece::Trailers(last_trailers)) = next_piece(&mut source).await else {
        panic!("no trailers")
    };
    assert_eq!((last_trailers, memory.total_bytes.get()), (trailers, 0));
    assert!(source.is_complete() && source.is_exhausted());
    assert!(next_piece(&mut source).await.is_none());
}
