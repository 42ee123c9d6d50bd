package main

import (
	"context"
	"net"
	"strings"
	"testing"
)

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
