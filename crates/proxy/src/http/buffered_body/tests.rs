//! Buffered prefixes of bodies, and the forwarded rest.

use std::net::Ipv4Addr;

use super::*;

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn read_beginning(taken: &Rc<BufferMemory>, pieces: &[&[u8]]) -> BufferedPrefix {
    let mut beginning = BufferedPrefix::new(taken.clone(), CLIENT);
    for piece in pieces {
        let data = BodyPiece::Data(Bytes::copy_from_slice(piece));
        assert!(beginning.take_piece(Some(data), false).is_ok());
    }
    beginning
}

async fn next(ahead: &mut PrefixedSource<'_>) -> Option<BodyPiece> {
    poll_fn(|cx| ahead.poll_next(cx)).await.unwrap()
}

#[test]
fn an_excerpt_says_whether_there_may_be_more() {
    let taken = Rc::default();
    let mut begun = read_beginning(&taken, &[b"ab", b"", b"cde"]);
    let excerpt = |begun: &BufferedPrefix, most| {
        let BufferedExcerpt { bytes, is_partial } = begun.excerpt(most);
        (String::from_utf8(bytes.to_vec()).unwrap(), is_partial)
    };
    assert_eq!(excerpt(&begun, 9), ("abcde".to_owned(), true));
    begun.take_piece(None, true).unwrap();
    for (most, text, is_partial) in
        [(9, "abcde", false), (5, "abcde", false), (3, "abc", true), (1, "a", true)]
    {
        assert_eq!(excerpt(&begun, most), (text.to_owned(), is_partial));
    }
}

#[tokio::test]
async fn what_was_read_goes_on_in_pieces_and_frees_its_memory_as_it_goes() {
    let taken: Rc<BufferMemory> = Rc::default();
    let body: Vec<u8> = (0..BLOCK_BYTES * 2 + 7).map(|at| at.to_le_bytes()[0]).collect();
    let small: Vec<&[u8]> = body.chunks(99).collect();
    let mut begun = read_beginning(&taken, &small);
    let trailers = Bytes::from_static(b"a: b\r\n\r\n");
    begun.take_piece(Some(BodyPiece::Trailers(trailers.clone())), true).unwrap();
    assert_eq!(
        begun.excerpt(usize::MAX),
        BufferedExcerpt { bytes: body.clone().into(), is_partial: false }
    );
    assert_eq!(taken.all.get(), body.len() + trailers.len());

    let mut ahead = begun.followed_by(BodySource::Empty);
    let mut all = Vec::new();
    for left in [BLOCK_BYTES + 7, 7, 0] {
        assert!(!ahead.is_complete());
        let Some(BodyPiece::Data(data)) = next(&mut ahead).await else { panic!("no data") };
        all.extend_from_slice(&data);
        assert_eq!(taken.all.get(), left + trailers.len());
    }
    assert!(all == body && !ahead.is_exhausted());
    let Some(BodyPiece::Trailers(last)) = next(&mut ahead).await else { panic!("no trailers") };
    assert_eq!((last, taken.all.get()), (trailers, 0));
    assert!(ahead.is_complete() && ahead.is_exhausted());
    assert!(next(&mut ahead).await.is_none());
}
