package assemble

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

func TestRateIsTheSumOfTheSources(t *testing.T) {
	m := numberedManifest(t, 150)
	alone := float64(m.Size()) / (100 * mbit)
	for i, test := range []struct {
		name  string
		links []float64
		least float64 // multiple of the rate of one provider (100 Mbit/s)
	}{
		{"one", []float64{100}, 0.99},
		{"two", []float64{100, 100}, 1.95},
		{"three", []float64{100, 100, 100}, 2.85},
		{"eight", []float64{100, 100, 100, 100, 100, 100, 100, 100}, 6.5},
		{"one with half the rate", []float64{100, 50}, 1.4},
		{"one with a quarter", []float64{100, 100, 25}, 2.1},
		{"one with a twentieth", []float64{100, 100, 5}, 1.8},
		{"one with a thousandth", []float64{100, 100, 0.1}, 1.75},
		{"one that does not respond", []float64{100, 100, 0}, 1.75},
	} {
		if race.Enabled && i%4 != 2 {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				links := map[string]*fakeLink{}
				for i, rate := range test.links {
					links[fmt.Sprintf("node%d", i)] = &fakeLink{rate: rate * mbit}
				}
				s := newTransfer(m, links)
				took, err := s.run(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if faster := alone / took.Seconds(); faster < test.least {
					t.Errorf("%.2f times the rate of one source, want %.2f", faster, test.least)
				}
				if s.wastePercent() > 2 {
					t.Errorf("received %.1f%% more than the image", s.wastePercent())
				}
				if most := windowChunks + len(links) + 1; len(s.buffers) > most {
					t.Errorf("%d buffers, want at most %d", len(s.buffers), most)
				}
				for name, l := range links {
					if l.maxOpen > 1 || l.open != 0 {
						t.Errorf("%s: %d requests at once, %d not closed", name, l.maxOpen, l.open)
					}
				}
			})
		})
	}
}

func TestAssemblyWaitsForASlowDisk(t *testing.T) {
	m := numberedManifest(t, 60)
	for _, chunk := range []time.Duration{5 * time.Second, patience + time.Second} { // in total longer than all timeouts
		synctest.Test(t, func(t *testing.T) {
			s := newTransfer(m, map[string]*fakeLink{"node1": {rate: 1000 * mbit}, "node2": {rate: 1000 * mbit}})
			s.consumeTime = chunk
			if _, err := s.run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s.wastePercent() > 0 {
				t.Errorf("received %.1f%% more than the image", s.wastePercent())
			}
		})
	}
}

// TestNoRequestWaitsForOneThatCannotBegin: the segment for which Run waits is requested by nobody, while the only provider
// that could send it waits for room in the window.
func TestNoRequestWaitsForOneThatCannotBegin(t *testing.T) {
	m := numberedManifest(t, 60)
	synctest.Test(t, func(t *testing.T) {
		s := newTransfer(m, map[string]*fakeLink{"node1": {rate: 900}, "node2": {rate: 4 * mib}})
		start := time.Now()
		s.Window = func() int64 { // it shrinks
			if time.Since(start) > 1500*time.Millisecond {
				return 6 * mib
			}
			return windowChunks * mib
		}
		s.Candidates = func() []Candidate {
			if time.Since(start) > 2*time.Second {
				delete(s.links, "node1")
			}
			return s.candidates()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if took, err := s.run(ctx); err != nil {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

func TestAssemblyGivesUpWithoutAUsableSource(t *testing.T) {
	m := numberedManifest(t, 60)
	for _, test := range []struct {
		name  string
		links map[string]*fakeLink
		words []string // expected in the error
		most  time.Duration
	}{
		{"no source", nil, []string{"no other node"}, 31 * time.Second},
		{"no response", map[string]*fakeLink{"node1": {}, "node2": {}}, []string{"node1/disk1: no response in 10s", "node2/disk1:"}, 46 * time.Second},
		{"below the stall rate", map[string]*fakeLink{"node1": {rate: 900}}, []string{"node1/disk1: stalled: less than 1 KiB/s"}, 46 * time.Second},
		{"wrong bytes", map[string]*fakeLink{"node1": {rate: mbit, wrong: true}, "node2": {refuses: true}}, []string{"node1/disk1 sent wrong bytes at 0", "node2/disk1: refused"}, 46 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				took, err := newTransfer(m, test.links).run(t.Context())
				e, ok := errors.AsType[*fetch.Error](err)
				if !ok || e.Class != fetch.Network || took > test.most || took < patience {
					t.Errorf("after %v: %v", took, err)
				}
				for _, word := range test.words {
					if !strings.Contains(fmt.Sprint(err), word) {
						t.Errorf("the error does not contain %q: %v", word, err)
					}
				}
			})
		})
	}
}

func TestSourceThatStallsIsReplaced(t *testing.T) {
	m := numberedManifest(t, 200)
	synctest.Test(t, func(t *testing.T) {
		s := newTransfer(m, map[string]*fakeLink{
			"node1": {rate: 100 * mbit, stallsAfter: 5 * time.Second},
			"node2": {rate: 100 * mbit, appearsAfter: 8 * time.Second},
		})
		took, err := s.run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// The duration without the stall is 17 s. node2 replaces the stalled provider when it appears.
		if took > 23*time.Second {
			t.Errorf("took %v", took)
		}
		if s.wastePercent() > 1 {
			t.Errorf("received %.1f%% more than the image", s.wastePercent())
		}
	})
}

func TestBusySourceIsAskedAgain(t *testing.T) {
	m := numberedManifest(t, 60)
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		s := newTransfer(m, map[string]*fakeLink{"node1": {rate: 100 * mbit}})
		start := time.Now()
		s.open = func(ctx context.Context, l *fakeLink, from, to int64) (io.ReadCloser, error) {
			if requests++; time.Since(start) < 5*time.Minute {
				return nil, busy(2 * time.Second)
			}
			return l.openRange(ctx, from, to)
		}
		took, err := s.run(t.Context())
		if err != nil || took > 5*time.Minute+10*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
		if requests < 140 || requests > 180 {
			t.Errorf("%d requests in 5 minutes with a Retry-After of 2 s", requests)
		}
	})
}

func TestAssemblyAtALimitRequestsNothingTwice(t *testing.T) {
	m := numberedManifest(t, 40)
	for _, limit := range []int64{64 << 10, mib, 20 * mib} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTransfer(m, map[string]*fakeLink{"node1": {rate: 1000 * mbit}, "node2": {rate: 100 * mbit}, "node3": {rate: 1000 * mbit}})
				s.limiter = fetch.NewLimiter(limit)
				took, err := s.run(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if rate := float64(m.Size()) / took.Seconds(); rate > 1.05*float64(limit) || rate < 0.9*float64(limit) {
					t.Errorf("received %.0f bytes per second at a limit of %d", rate, limit)
				}
				if s.wastePercent() > 2 {
					t.Errorf("received %.1f%% more than the image", s.wastePercent())
				}
			})
		})
	}
}

// TestConcurrentAssembliesShareMemory checks that each one has a smaller window if there are more, and
// that all make progress.
func TestConcurrentAssembliesShareMemory(t *testing.T) {
	m := numberedManifest(t, 60)
	for _, others := range []int64{0, 1, 4, 40} {
		synctest.Test(t, func(t *testing.T) {
			links := map[string]*fakeLink{"node1": {rate: 1000 * mbit}, "node2": {rate: 1000 * mbit}, "node3": {rate: 100 * mbit}}
			s := newTransfer(m, links)
			s.pulls = others + 1
			s.consumeTime = 10 * time.Millisecond
			if _, err := s.run(t.Context()); err != nil {
				t.Fatal(err)
			}
			most := min(windowChunks, max(6, 2*windowChunks/int(others+1)))
			if got := len(s.buffers); got > most+len(links)+1 {
				t.Errorf("with %d other pulls: %d buffers, want at most %d", others, got, most+len(links)+1)
			}
		})
	}
}

// TestAssemblyContinuesWhenASlowConnectionDrops: a chunk takes longer than the patience on this
// connection.
func TestAssemblyContinuesWhenASlowConnectionDrops(t *testing.T) {
	m := numberedManifest(t, 6)
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		s := newTransfer(m, map[string]*fakeLink{"node1": {rate: 16 << 10}})
		s.open = func(ctx context.Context, l *fakeLink, from, to int64) (io.ReadCloser, error) {
			b, err := l.openRange(ctx, from, to)
			if requests++; requests < 3 {
				b = struct {
					io.Reader
					io.Closer
				}{io.LimitReader(b, mib/2), b}
			}
			return b, err
		}
		if took, err := s.run(t.Context()); err != nil {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

func TestReserveIsReadWhenTheOthersSendNothing(t *testing.T) {
	t.Parallel()
	m := numberedManifest(t, 250)
	for i, test := range []struct {
		name        string
		peers       float64 // Mbit/s; 0: no peer
		upstream    float64 // Mbit/s
		limit       int64
		consume     time.Duration
		least, most int64 // number of chunks from the upstream
		slowest     time.Duration
		appears     time.Duration // time when the peer appears
		stalls      time.Duration // time when the peer stalls
		busy        bool
	}{
		{name: "peers are slow", peers: 5, upstream: 250, most: 0, slowest: 430 * time.Second},
		{name: "the disk is the bottleneck", peers: 50, upstream: 250, consume: 240 * time.Millisecond, most: 0, slowest: 62 * time.Second},
		{name: "the disk is slower than all timeouts", peers: 50, upstream: 250, consume: 12 * time.Second, most: 0, slowest: 3010 * time.Second},
		{name: "the limit is the bottleneck", peers: 50, upstream: 250, limit: 5 * mib / 2, most: 0, slowest: 105 * time.Second},
		{name: "no peer", upstream: 25, least: 250, most: 250, slowest: 96 * time.Second},
		{name: "a peer appears later", upstream: 25, peers: 50, appears: 20 * time.Second, least: 20, most: 45, slowest: 65 * time.Second},
		{name: "a peer stalls", upstream: 25, peers: 50, stalls: 10 * time.Second, least: 150, most: 200, slowest: 95 * time.Second},
		{name: "peers are busy", peers: 25, busy: true, upstream: 250, most: 0, slowest: 350 * time.Second},
	} {
		if race.Enabled && i%4 != 0 {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				links := map[string]*fakeLink{}
				if test.peers > 0 {
					links["node1"] = &fakeLink{rate: test.peers * mbit, appearsAfter: test.appears, stallsAfter: test.stalls, busy: test.busy}
				}
				s := newTransfer(m, links)
				s.consumeTime = test.consume
				s.limiter = fetch.NewLimiter(test.limit)
				s.upstream = &fakeLink{rate: test.upstream * mbit}
				took, err := s.run(t.Context())
				if err != nil || took > test.slowest {
					t.Errorf("after %v: %v", took, err)
				}
				if read := s.Progress.UpstreamBytes.Load() / mib; read < test.least || read > test.most {
					t.Errorf("%d chunks came from the upstream, want %d to %d", read, test.least, test.most)
				}
			})
		})
	}
}

// TestAssemblyGivesUpOnABusySource: a provider whose sends hang responds with 429 forever.
func TestAssemblyGivesUpOnABusySource(t *testing.T) {
	m := numberedManifest(t, 60)
	for name, upstream := range map[string]*fakeLink{"without upstream": nil, "with upstream": {rate: 100 * mbit}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTransfer(m, map[string]*fakeLink{"node1": {}})
				s.upstream = upstream
				s.open = func(context.Context, *fakeLink, int64, int64) (io.ReadCloser, error) { return nil, busy(time.Second) }
				ctx, cancel := context.WithTimeout(t.Context(), 2*maxBusyTime)
				defer cancel()
				took, err := s.run(ctx)
				if upstream != nil {
					if err != nil || s.Progress.UpstreamBytes.Load() != m.Size() {
						t.Errorf("after %v: %v", took, err)
					}
				} else if err == nil || !strings.Contains(err.Error(), "node1/disk1: busy: the sending limit is reached") {
					t.Errorf("after %v: %v", took, err)
				}
				if took < maxBusyTime || took > maxBusyTime+2*time.Minute {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

// TestOldFailuresAreForgotten: a repair may take hours and need many chunks. The backoff of a provider that fails
// occasionally must not grow.
func TestOldFailuresAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		get := newRepair(func(request int, from, to int64) (io.ReadCloser, error) {
			if request%5 == 0 {
				return nil, io.ErrUnexpectedEOF
			}
			return io.NopCloser(&numberedReader{from, to}), nil
		})
		for n := range int64(50) {
			start := time.Now()
			if err := get(t.Context(), n); err != nil || time.Since(start) > firstBackoff {
				t.Fatalf("chunk %d after %v: %v", n, time.Since(start), err)
			}
			time.Sleep(time.Minute)
		}
	})
}

func TestRepairGivesUpOnABusySource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		get := newRepair(func(int, int64, int64) (io.ReadCloser, error) { return nil, busy(time.Second) })
		ctx, cancel := context.WithTimeout(t.Context(), 2*maxBusyTime)
		defer cancel()
		if err := get(ctx, 1); err == nil || !strings.Contains(err.Error(), "busy: the sending limit is reached") {
			t.Error(err)
		}
	})
}
