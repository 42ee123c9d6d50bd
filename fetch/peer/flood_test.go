package peer

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/backoff"
	"github.com/seed-26586806/backing-image-manager/internal/testx/heap"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// flood writes one State that is as expensive as the limits allow.
type flood struct {
	name  string
	write func(w io.Writer)
}

// repeated writes format for many numbers, until the reader gives up.
func repeated(w io.Writer, n int, format string) {
	var block strings.Builder
	for i := range n {
		fmt.Fprintf(&block, format, i)
		if block.Len() > 60<<10 || i == n-1 {
			if _, err := io.WriteString(w, block.String()); err != nil {
				return
			}
			block.Reset()
		}
	}
}

// floods are states of node1 with a declared disk1. Before this test they took up to 700 MiB.
func floods() []flood {
	text, digits := strings.Repeat("m", 60), strings.Repeat("ab", 64)
	copies := func(format string) func(w io.Writer) {
		return func(w io.Writer) {
			_, _ = io.WriteString(w, nodeHead+diskHead)
			repeated(w, 131_000, format+",")
			_, _ = io.WriteString(w, `{"name":"zz","uuid":"00000001"}]}]}`)
		}
	}
	failure := `"try":{"action":"download","message":"%[1]d ` + text + `","attempts":1}`
	all := `"message":"%[1]d m","using":"%[1]d u","refuses":"%[1]d r",` + failure
	return []flood{
		{"unmanaged copies", copies(`{"name":"n%d","uuid":"00000001","state":"unknown","message":"` + text + `"}`)},
		{"orphans", copies(`{"name":"n%[1]d","uuid":"00000001","state":"ready","sha512":"` + digits + `","owned":true,` + all + `}`)},
		{"generations", copies(`{"name":"parrot","uuid":"%08[1]x","state":"pending","owned":true,` + all + `}`)},
		{"disks", func(w io.Writer) {
			_, _ = io.WriteString(w, nodeHead)
			repeated(w, 1000, `{"name":"other%d","copies":[`+strings.Repeat(`{"name":"n","uuid":"00000001","owned":true},`, 100)+`{"name":"m","uuid":"00000001"}]},`)
			_, _ = io.WriteString(w, `{"name":"last","copies":[]}]}`)
		}},
		{"white space", func(w io.Writer) { writeForever(w, " ") }},
		{"a long string", func(w io.Writer) { _, _ = io.WriteString(w, `{"new":"`); writeForever(w, "n") }},
		{"a long key", func(w io.Writer) { _, _ = io.WriteString(w, `{"`); writeForever(w, "n") }},
		{"a long number", func(w io.Writer) { _, _ = io.WriteString(w, `{"new":`); writeForever(w, "7") }},
		{"a long array", func(w io.Writer) { _, _ = io.WriteString(w, `{"new":[[0`); writeForever(w, ",1") }},
		{"a long copy", func(w io.Writer) {
			_, _ = io.WriteString(w, nodeHead+diskHead+`{"new":[0`)
			writeForever(w, ",1")
		}},
		{"a long message", func(w io.Writer) {
			_, _ = io.WriteString(w, nodeHead+diskHead+`{"message":"`)
			writeForever(w, `\u0041`)
		}},
	}
}

// A peer answers every poll with another flood. The poller never holds more than 32 MiB for it, two
// states and what their decoding needs included, and polls the other nodes meanwhile.
func TestPollerBoundsTheMemoryForAPeer(t *testing.T) {
	race.Skip(t)
	const allowed = 32 << 20
	for _, f := range floods() {
		t.Run(f.name, func(t *testing.T) {
			var served atomic.Int64
			flooded := make(chan struct{})
			at := startFakePeer(t, func(w http.ResponseWriter, _ *http.Request) {
				n := served.Add(1)
				w.Header().Set("ETag", fmt.Sprintf(`"%d"`, n))
				f.write(w)
				if n == 2 {
					close(flooded)
				}
			})
			grown := heap.Watch(t)
			p := NewPoller(newClient(t))
			p.config.idleFactor, p.config.retry = 0, backoff.Doubling{} // without pauses
			p.SetPeers(t.Context(), map[string]Target{"node1": {URL: at.URL, Scope: Scope{
				Disks: map[string]bool{"disk1": true}, Images: map[string]string{"parrot": "0a1b2c3d", "macaw": "0000000b"},
			}}})
			<-flooded
			p.Close()
			if grown := grown(); grown > allowed {
				t.Errorf("%d MiB were in use", grown>>20)
			} else {
				t.Logf("%d KiB were in use", grown>>10)
			}
			runtime.KeepAlive(p)
		})
	}
}
