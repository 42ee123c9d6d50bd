package main

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
)

// What a daemon answers is shown, and not done by the terminal.
func TestErrorsAreText(t *testing.T) {
	var b strings.Builder
	writeError(&b, errors.Join(&refusedError{"http://x", 403, "no \x1b[2J\x1b]0;title\a"}, errors.New(" ü\tnot read ")))
	if want := "error: the daemon at http://x refuses: no \ufffd[2J\ufffd]0;title\ufffd\nerror: ü\ufffdnot read\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

// TestDaemonThatHangs: who takes the connection and says nothing is not waited for, and
// that is said in words.
func TestDaemonThatHangs(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err = caller{url: "http://" + listener.Addr().String()}.status(ctx)
	if err == nil || !strings.HasSuffix(err.Error(), ": it does not answer in time") {
		t.Errorf("error is %v", err)
	}
	if hint := hintFor(err); !strings.Contains(hint, "ask another one with --url") {
		t.Errorf("the hint is %q", hint)
	}
}
