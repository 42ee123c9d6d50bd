package fetch

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/ulikunitz/xz"
)

// newXzReader unpacks xz in this process. The xz program is about twice as fast,
// but not in every container, and what it may do with memory and with foreign
// bytes would have to be fenced in: a download is rarely faster than this is.
func newXzReader(r io.Reader) (io.Reader, error) {
	head := bufio.NewReaderSize(r, 64<<10)
	if err := checkXzWindow(head); err != nil {
		return nil, err
	}
	return xz.NewReader(head)
}

// checkXzWindow looks at the first block header, because the library takes as
// much memory as that asks for, up to 4 GiB.
func checkXzWindow(r *bufio.Reader) error {
	head, err := r.Peek(13)
	if err != nil {
		return io.ErrUnexpectedEOF
	}
	size := 4 * (int(head[12]) + 1)
	if head, err = r.Peek(12 + size); err != nil {
		return io.ErrUnexpectedEOF
	}
	window, err := xzWindow(head[12:])
	if err == nil && window > maxWindow {
		return fmt.Errorf("it was packed with a dictionary of %d MiB: at most %d MiB are supported", window>>20, maxWindow>>20)
	}
	return err
}

// xzWindow reads the dictionary size of a block header (xz file format, 3.1).
func xzWindow(block []byte) (int64, error) {
	if block[0] == 0 {
		return 0, nil // an index: the file holds no block
	}
	flags, rest := block[1], block[2:]
	for _, sizeIsThere := range []bool{flags&0x40 != 0, flags&0x80 != 0} {
		if sizeIsThere {
			for len(rest) > 0 && rest[0]&0x80 != 0 {
				rest = rest[1:]
			}
			rest = rest[min(1, len(rest)):]
		}
	}
	const lzma2 = 0x21
	if flags&0x03 != 0 || len(rest) < 3 || rest[0] != lzma2 || rest[1] != 1 {
		return 0, errors.New("only the LZMA2 filter alone is supported")
	}
	code := rest[2] & 0x3f
	return int64(2|code&1) << (code/2 + 11), nil
}
