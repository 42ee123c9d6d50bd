package script

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
)

var proxyCommands = []command{
	{name: "proxy", args: "VAR HOST:PORT SIZE", min: 3, max: 3, run: startProxy,
		doc: "Starts a TCP proxy for the address. Until `proxy-open VAR`, the proxy forwards at most SIZE bytes of responses, in total over all connections. Sets $VAR to the HOST:PORT of the proxy."},
	{name: "proxy-open", args: "VAR", min: 1, max: 1, run: openProxy,
		doc: "Removes the limit of the proxy."},
	{name: "proxy-bytes", args: "VAR <|=|> SIZE", asserts: true, min: 3, max: 3, run: proxyBytes,
		doc: "Compares the number of response bytes that the proxy has forwarded."},
	{name: "stall", args: "NAME URL", min: 2, max: 2, run: stall,
		doc: "Requests URL, and reads only the first byte of the response until `unstall NAME` or the end of the script."},
	{name: "unstall", args: "NAME", min: 1, max: 1, run: unstall,
		doc: "Closes the connection of `stall`."},
}

// proxy forwards connections. Until it is opened, it forwards at most limit bytes of responses.
type proxy struct {
	to string

	mu      sync.Mutex
	changed *sync.Cond
	passed  int64
	limit   int64 // -1: no limit
}

func startProxy(s script, args []string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p := &proxy{to: args[1], limit: s.size(args[2])}
	p.changed = sync.NewCond(&p.mu)
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			connections.Go(func() { p.connect(c.(*net.TCPConn)) })
		}
	})
	s.Defer(func() {
		l.Close()
		p.open()
		connections.Wait()
	})
	s.proxies[args[0]] = p
	s.Setenv(args[0], l.Addr().String())
	return nil
}

// proxyBuffer is the size of the buffers of the kernel at both ends of a proxy.
const proxyBuffer = 64 << 10

// narrow connects with a small receive buffer, so that a server still sends a response while the proxy waits with its bytes. The size
// must be set before the connection.
var narrow = net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
	broken := c.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, proxyBuffer)
	})
	return errors.Join(err, broken)
}}

func (p *proxy) connect(from *net.TCPConn) {
	defer from.Close()
	to, err := narrow.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer to.Close()
	_ = from.SetWriteBuffer(proxyBuffer) // bytes in the buffer of the kernel count as forwarded
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(to, from) // either end may close the connection at any time
		to.Close()
	})
	both.Go(func() {
		_, _ = io.Copy(limitedWriter{from, p}, to)
		from.Close()
	})
	both.Wait()
}

// limitedWriter writes the bytes that the proxy may forward, and waits with the rest.
type limitedWriter struct {
	io.Writer
	p *proxy
}

func (w limitedWriter) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	for w.p.limit >= 0 && w.p.passed+int64(len(b)) > w.p.limit {
		w.p.changed.Wait()
	}
	w.p.passed += int64(len(b))
	w.p.mu.Unlock()
	return w.Writer.Write(b)
}

func (p *proxy) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = -1
	p.changed.Broadcast()
}

func (s script) proxy(name string) *proxy {
	p := s.proxies[name]
	if p == nil {
		s.Fatalf("there is no proxy %s", name)
	}
	return p
}

func openProxy(s script, args []string) error {
	s.proxy(args[0]).open()
	return nil
}

func proxyBytes(s script, args []string) error {
	p := s.proxy(args[0])
	p.mu.Lock()
	passed := p.passed
	p.mu.Unlock()
	return compare("the number of bytes passed", float64(passed), args[1], args[2], s.size)
}

func stall(s script, args []string) error {
	response, err := new(http.Transport).RoundTrip(httptest.NewRequest(http.MethodGet, args[1], nil))
	if err != nil {
		return err
	}
	s.responses[args[0]] = response.Body
	s.Defer(func() { _ = response.Body.Close() })
	if _, err := io.ReadFull(response.Body, make([]byte, 1)); err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s, error %v", args[1], response.Status, err)
	}
	return nil
}

func unstall(s script, args []string) error {
	body := s.responses[args[0]]
	if body == nil {
		s.Fatalf("no stall with the name %s was started", args[0])
	}
	return body.Close()
}
