package exactly

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReadAt(t *testing.T) {
	b := make([]byte, 3)
	if err := ReadAt(strings.NewReader("parrot"), b, 3); err != nil || string(b) != "rot" {
		t.Errorf("got %q, %v", b, err)
	}
	if err := ReadAt(strings.NewReader("parrot"), b, 4); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a file that is too short: %v", err)
	}
}

func TestRead(t *testing.T) {
	for length, want := range map[int]bool{5: false, 6: true, 7: false} {
		b := make([]byte, length)
		if err := Read(iotest.OneByteReader(strings.NewReader("parrot")), b); (err == nil) != want {
			t.Errorf("%d bytes: %v", length, err)
		}
	}
	broken := io.MultiReader(strings.NewReader("parrot"), iotest.ErrReader(io.ErrClosedPipe))
	if err := Read(broken, make([]byte, 6)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("an error after the last byte: %v", err)
	}
}
