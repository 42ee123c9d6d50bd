package fetch

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/ulikunitz/xz"
)

// newXzReader unpacks xz in this process. The xz program is faster, but not in
// every container, and what it may do with memory and with foreign bytes would
// have to be fenced in.
func newXzReader(r io.Reader) (io.Reader, error) {
	return xz.NewReader(&xzGuard{in: bufio.NewReaderSize(r, 256<<10), look: (*xzGuard).stream})
}

// xzGuard passes a file of xz on as it is and follows its structure on the way
// (xz file format 1.2; LZMA2 chunks as in xz-embedded), because the library takes
// as much memory as the header of a block asks for: up to 4 GiB.
type xzGuard struct {
	in   *bufio.Reader
	pass int64                // bytes that may go on without another look
	look func(*xzGuard) error // at what comes then

	check  int64 // length of the check behind each block
	length int64 // of the block's chunks, or of the index, so far
	fields int64 // variable-length numbers left in the index
}

var errXz = errors.New("the structure of the xz file is damaged")

func (g *xzGuard) Read(p []byte) (int, error) {
	for g.pass == 0 {
		if err := g.look(g); err != nil {
			return 0, err
		}
	}
	n, err := g.in.Read(p[:min(int64(len(p)), g.pass)])
	g.pass -= int64(n)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// peek returns the next n bytes, which stay to be passed on.
func (g *xzGuard) peek(n int) ([]byte, error) {
	b, err := g.in.Peek(n)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// then lets n bytes pass before look.
func (g *xzGuard) then(n int64, look func(*xzGuard) error) error {
	g.pass, g.look = n, look
	return nil
}

func (g *xzGuard) stream() error {
	head, err := g.peek(12)
	if err != nil {
		return err
	}
	g.check = []int64{0, 4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64}[head[7]&0x0f]
	return g.then(12, (*xzGuard).block)
}

func (g *xzGuard) block() error {
	b, err := g.peek(1)
	if err != nil {
		return err
	}
	g.length = 0
	if b[0] == 0 {
		g.length, g.fields = 1, -1
		return g.then(1, (*xzGuard).index)
	}
	size := 4 * (int(b[0]) + 1)
	if b, err = g.peek(size); err != nil {
		return err
	}
	window, err := xzWindow(b)
	if err == nil && window > maxWindow {
		err = fmt.Errorf("it was packed with a dictionary of %d MiB: at most %d MiB are supported", window>>20, maxWindow>>20)
	}
	if err != nil {
		return err
	}
	return g.then(int64(size), (*xzGuard).chunk)
}

// xzWindow reads the size of the dictionary from the header of a block.
func xzWindow(block []byte) (int64, error) {
	flags, rest := block[1], block[2:]
	for _, bit := range []byte{0x40, 0x80} { // sizes, which are there or not
		if flags&bit != 0 {
			_, n := variable(rest)
			rest = rest[n:]
		}
	}
	const lzma2 = 0x21
	if flags&0x03 != 0 || len(rest) < 3 || rest[0] != lzma2 || rest[1] != 1 {
		return 0, errors.New("it was packed with other filters than LZMA2 alone, which are not supported")
	}
	code := rest[2] & 0x3f
	return int64(2|code&1) << (code/2 + 11), nil
}

func (g *xzGuard) chunk() error {
	b, err := g.peek(1)
	if err != nil {
		return err
	}
	control, size := b[0], 0
	switch {
	case control == 0:
		g.length++
		return g.then(1+-g.length&3+g.check, (*xzGuard).block)
	case control <= 2:
		if b, err = g.peek(3); err == nil {
			size = 3 + int(b[1])<<8 + int(b[2]) + 1
		}
	case control < 0x80:
		return errXz
	default:
		if b, err = g.peek(5); err == nil {
			size = 5 + int(b[3])<<8 + int(b[4]) + 1
		}
		if control >= 0xc0 {
			size++
		}
	}
	g.length += int64(size)
	return errors.Join(err, g.then(int64(size), (*xzGuard).chunk))
}

// index has a number of records and two numbers for each.
func (g *xzGuard) index() error {
	if g.fields == 0 {
		const crc, footer = 4, 12
		return g.then(-g.length&3+crc+footer, (*xzGuard).padding)
	}
	b, err := g.in.Peek(9)
	value, n := variable(b)
	if n == 0 {
		return errors.Join(errXz, err)
	}
	if g.fields--; g.fields < 0 {
		if value > 1<<40 {
			return errXz
		}
		g.fields = 2 * value
	}
	g.length += int64(n)
	return g.then(int64(n), (*xzGuard).index)
}

// padding may stand behind a stream, and another stream behind that.
func (g *xzGuard) padding() error {
	b, err := g.in.Peek(4)
	if len(b) == 0 {
		return err
	}
	if len(b) == 4 && [4]byte(b) != [4]byte{} {
		return g.stream()
	}
	return g.then(int64(len(b)), (*xzGuard).padding)
}

// variable reads a number of seven bits a byte, and returns its length, which is 0
// for what is none.
func variable(b []byte) (value int64, n int) {
	for n = range min(len(b), 9) {
		value |= int64(b[n]&0x7f) << (7 * n)
		if b[n]&0x80 == 0 {
			return value, n + 1
		}
	}
	return 0, 0
}
