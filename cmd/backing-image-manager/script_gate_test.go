package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
)

// gates are those of one script, by the variables with their addresses.
type gates map[string]*gate

type gatesKey struct{}

// gate passes connections on, and lets no more than so many bytes of answers through
// until it is opened.
type gate struct {
	to string

	mu     sync.Mutex
	moved  *sync.Cond
	passed int64
	limit  int64 // -1: none
}

// makeGate starts one, see script_test.go.
func makeGate(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: gate VAR HOST:PORT SIZE")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	g := &gate{to: args[1], limit: parseSize(ts, args[2])}
	g.moved = sync.NewCond(&g.mu)
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			connections.Go(func() { g.connect(c.(*net.TCPConn)) })
		}
	})
	ts.Defer(func() {
		l.Close()
		g.open()
		connections.Wait()
	})
	ts.Value(gatesKey{}).(gates)[args[0]] = g
	ts.Setenv(args[0], l.Addr().String())
}

func (g *gate) connect(from *net.TCPConn) {
	defer from.Close()
	to, err := net.Dial("tcp", g.to)
	if err != nil {
		return
	}
	defer to.Close()
	_ = from.SetWriteBuffer(64 << 10) // what this kernel holds back has passed nothing
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(to, from) // either end may go at any time
		to.Close()
	})
	both.Go(func() {
		_, _ = io.Copy(passing{from, g}, to)
		from.Close()
	})
	both.Wait()
}

// passing writes what the gate lets through.
type passing struct {
	io.Writer
	g *gate
}

func (p passing) Write(b []byte) (int, error) {
	p.g.mu.Lock()
	for p.g.limit >= 0 && p.g.passed+int64(len(b)) > p.g.limit {
		p.g.moved.Wait()
	}
	p.g.passed += int64(len(b))
	p.g.mu.Unlock()
	return p.Writer.Write(b)
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limit = -1
	g.moved.Broadcast()
}

func gateOf(ts *testscript.TestScript, name string) *gate {
	g := ts.Value(gatesKey{}).(gates)[name]
	if g == nil {
		ts.Fatalf("there is no gate %s", name)
	}
	return g
}

// openGate opens one, see script_test.go.
func openGate(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: open VAR")
	}
	gateOf(ts, args[0]).open()
}

// passed compares what came through a gate, see script_test.go.
func passed(ts *testscript.TestScript, args []string) error {
	if len(args) != 3 {
		ts.Fatalf("usage: passed VAR <|>|= SIZE")
	}
	g := gateOf(ts, args[0])
	g.mu.Lock()
	defer g.mu.Unlock()
	want := parseSize(ts, args[2])
	if holds := map[string]bool{"<": g.passed < want, "=": g.passed == want, ">": g.passed > want}; !holds[args[1]] {
		return fmt.Errorf("%d bytes have passed", g.passed)
	}
	return nil
}

// larger asserts that a file has more bytes, see script_test.go.
func larger(ts *testscript.TestScript, args []string) error {
	if len(args) != 2 {
		ts.Fatalf("usage: larger FILE SIZE")
	}
	info, err := os.Stat(ts.MkAbs(args[0]))
	if err == nil && info.Size() <= parseSize(ts, args[1]) {
		err = fmt.Errorf("%s has %d bytes", args[0], info.Size())
	}
	return err
}
