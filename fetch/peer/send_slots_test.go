package peer

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// large is more than the buffers of a connection hold.
const large = 24 << 20

// hold asks for the whole image on a connection of its own and reads nothing but the
// beginning of the answer.
func hold(t *testing.T, n *node, id disk.ID) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", n.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "GET /v1/images/%s/%s/data?disk=disk1 HTTP/1.1\r\nHost: %s\r\n\r\n", id.Name, id.UUID, c.RemoteAddr())
	begin := make([]byte, len("HTTP/1.1 200 OK"))
	if _, err := io.ReadFull(c, begin); err != nil || string(begin) != "HTTP/1.1 200 OK" {
		t.Fatalf("got %q, %v", begin, err)
	}
	return c
}

func TestThreeSendsOfAnImage(t *testing.T) {
	n := startNode(t, "node1")
	s := n.put(t, parrot, patterned(large))
	var last net.Conn
	for range maxSends {
		last = hold(t, n, parrot)
	}
	c := newClient(t)
	_, err := c.data(t.Context(), s, 0, 512)
	var busy *BusyError
	if !errors.As(err, &busy) || busy.After != time.Second {
		t.Fatalf("the fourth: got %v", err)
	}
	other := n.put(t, disk.ID{Name: "other", UUID: "00000001"}, patterned(4096))
	if b, err := c.data(t.Context(), other, 0, 512); err != nil {
		t.Errorf("another image: got %v", err)
	} else {
		b.Close()
	}
	last.Close()
	eventually(t, c, s)
}

// eventually asks until the image is sent.
func eventually(t *testing.T, c *Client, s Source) {
	t.Helper()
	for {
		b, err := c.data(t.Context(), s, 0, 512)
		if err == nil {
			b.Close()
			return
		}
		var busy *BusyError
		if !errors.As(err, &busy) || !rest(t.Context(), 20*time.Millisecond) {
			t.Fatalf("got %v", err)
		}
	}
}

func TestReaderOfNothingLosesItsSlot(t *testing.T) {
	n := startNode(t, "node1")
	n.server.piece, n.server.sends.turn = 100*time.Millisecond, time.Hour
	s := n.put(t, parrot, patterned(large))
	var held []net.Conn
	for range maxSends {
		held = append(held, hold(t, n, parrot))
	}
	eventually(t, newClient(t), s)
	thrown := 0
	for _, c := range held {
		if got, err := io.Copy(io.Discard, c); got < large || err != nil {
			thrown++
		}
	}
	if thrown == 0 {
		t.Error("all got all bytes")
	}
}

// The timeouts of the server are for questions that are answered at once.
func TestSendMayTakeLongerThanTheTimeouts(t *testing.T) {
	n := startNode(t, "node1")
	s := n.put(t, parrot, patterned(large))
	b, err := newClient(t).data(t.Context(), s, 0, large)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	rest(t.Context(), 2*(n.Config.ReadTimeout+n.Config.WriteTimeout))
	if got, err := io.Copy(io.Discard, b); got != large || err != nil {
		t.Errorf("got %d bytes, %v", got, err)
	}
}

// A reader that takes each piece in time, but slowly, makes room after its turn, and
// only when somebody else asks.
func TestSlowReaderHasItsTurn(t *testing.T) {
	n := startNode(t, "node1")
	n.server.piece, n.server.sends.turn = time.Hour, 0
	s := n.put(t, parrot, patterned(large))
	var held []net.Conn
	for range maxSends {
		held = append(held, hold(t, n, parrot))
	}
	eventually(t, newClient(t), s)
	if got, err := io.Copy(io.Discard, held[0]); got >= large {
		t.Errorf("the first got all %d bytes, %v", got, err)
	}
}
