package fetch

import (
	"errors"
	"io"
	"net"
	"net/url"
	"syscall"
)

// broken reports whether err says that a connection ended that was there.
func broken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNABORTED)
}

func timedOut(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// bare returns err without what would print an address in full, and without a
// clean end of a stream in its chain: whoever reads on would take it for one.
func bare(err error) error {
	var withURL *url.Error
	for errors.As(err, &withURL) {
		err = withURL.Err
	}
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
