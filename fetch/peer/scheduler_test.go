package peer

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

func TestPullRateIsTheSumOfItsSources(t *testing.T) {
	m := numberedManifest(t, 150)
	alone := float64(m.Size()) / (100 * mbit)
	for i, test := range []struct {
		name  string
		links []float64
		least float64 // multiple of the rate of one source (100 Mbit/s)
	}{
		{"one", []float64{100}, 0.99},
		{"two", []float64{100, 100}, 1.95},
		{"three", []float64{100, 100, 100}, 2.85},
		{"eight", []float64{100, 100, 100, 100, 100, 100, 100, 100}, 6.5},
		{"one with half the rate", []float64{100, 50}, 1.4},
		{"one with a quarter", []float64{100, 100, 25}, 2.1},
		{"one with a twentieth", []float64{100, 100, 5}, 1.9},
		{"one with a thousandth", []float64{100, 100, 0.1}, 1.85},
		{"one that does not respond", []float64{100, 100, 0}, 1.85},
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
				s := simulate(m, links)
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

func TestPullWaitsForASlowDisk(t *testing.T) {
	m := numberedManifest(t, 60)
	synctest.Test(t, func(t *testing.T) {
		s := simulate(m, map[string]*fakeLink{"node1": {rate: 1000 * mbit}, "node2": {rate: 1000 * mbit}})
		s.consumeTime = 5 * time.Second // 5 minutes in total, which is longer than all timeouts
		if _, err := s.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.wastePercent() > 0 {
			t.Errorf("received %.1f%% more than the image", s.wastePercent())
		}
	})
}

func TestPullGivesUpWithoutAUsableSource(t *testing.T) {
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
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				took, err := simulate(m, test.links).run(t.Context())
				e, ok := errors.AsType[*fetch.Error](err)
				if !ok || e.Class != fetch.Network || took > test.most || took < giveUpAfter {
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

func TestPullReplacesASourceThatStalls(t *testing.T) {
	m := numberedManifest(t, 200)
	synctest.Test(t, func(t *testing.T) {
		s := simulate(m, map[string]*fakeLink{
			"node1": {rate: 100 * mbit, stallsAfter: 5 * time.Second},
			"node2": {rate: 100 * mbit, appearsAfter: 8 * time.Second},
		})
		took, err := s.run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// The duration without the stall is 17 s. node2 replaces the stalled source when it appears.
		if took > 23*time.Second {
			t.Errorf("took %v", took)
		}
		if s.wastePercent() > 1 {
			t.Errorf("received %.1f%% more than the image", s.wastePercent())
		}
	})
}

func TestPullRetriesABusySource(t *testing.T) {
	m := numberedManifest(t, 60)
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		s := simulate(m, map[string]*fakeLink{"node1": {rate: 100 * mbit}})
		openRange := s.openRange
		start := time.Now()
		s.openRange = func(ctx context.Context, from Source, at, to int64) (io.ReadCloser, error) {
			if requests++; time.Since(start) < 5*time.Minute {
				return nil, &busyError{retryAfter: 2 * time.Second}
			}
			return openRange(ctx, from, at, to)
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

func TestPullAtALimitRequestsNothingTwice(t *testing.T) {
	m := numberedManifest(t, 40)
	for _, limit := range []int64{64 << 10, mib, 20 * mib} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := simulate(m, map[string]*fakeLink{"node1": {rate: 1000 * mbit}, "node2": {rate: 100 * mbit}, "node3": {rate: 1000 * mbit}})
				s.pull.Limit, s.limiter = limit, fetch.NewLimiter(limit)
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

// TestConcurrentPullsShareMemory checks that each pull has a smaller window if more pulls run, and
// that all pulls make progress.
func TestConcurrentPullsShareMemory(t *testing.T) {
	m := numberedManifest(t, 60)
	for _, others := range []int32{0, 1, 4, 40} {
		synctest.Test(t, func(t *testing.T) {
			links := map[string]*fakeLink{"node1": {rate: 1000 * mbit}, "node2": {rate: 1000 * mbit}, "node3": {rate: 100 * mbit}}
			s := simulate(m, links)
			s.pull.Client.activePulls.Store(others)
			s.consumeTime = 10 * time.Millisecond
			if _, err := s.run(t.Context()); err != nil {
				t.Fatal(err)
			}
			most := min(windowChunks, max(minWindowChunks, sharedChunks/int(others+1)))
			if got := len(s.buffers); got > most+len(links)+1 {
				t.Errorf("with %d other pulls: %d buffers, want at most %d", others, got, most+len(links)+1)
			}
		})
	}
}

// TestPullContinuesWhenASlowConnectionDrops: a chunk takes longer than giveUpAfter on this
// connection.
func TestPullContinuesWhenASlowConnectionDrops(t *testing.T) {
	m := numberedManifest(t, 6)
	synctest.Test(t, func(t *testing.T) {
		l, requests := &fakeLink{rate: 16 << 10}, 0
		s := simulate(m, map[string]*fakeLink{"node1": l})
		s.openRange = func(ctx context.Context, _ Source, at, to int64) (io.ReadCloser, error) {
			b, err := l.openRange(ctx, at, to)
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

func TestPullReadsTheUpstreamWhenPeersDoNotSuffice(t *testing.T) {
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
		busy        bool
	}{
		{name: "peers are faster", peers: 50, upstream: 25, least: 8, most: 8, slowest: 44 * time.Second},
		{name: "peers are faster for long", peers: 5, upstream: 2.5, least: 16, most: 32, slowest: 430 * time.Second},
		{name: "the disk is the bottleneck", peers: 50, upstream: 250, consume: 240 * time.Millisecond, most: 0, slowest: 62 * time.Second},
		{name: "the limit is the bottleneck", peers: 50, upstream: 250, limit: 5 * mib / 2, most: 0, slowest: 105 * time.Second},
		{name: "the upstream is faster", peers: 2.5, upstream: 50, least: 212, most: 248, slowest: 55 * time.Second},
		{name: "no peer", upstream: 25, least: 250, most: 250, slowest: 96 * time.Second},
		{name: "a peer appears later", upstream: 25, peers: 50, appears: 20 * time.Second, least: 20, most: 45, slowest: 65 * time.Second},
		{name: "peers are busy", peers: 25, busy: true, upstream: 250, most: 0, slowest: 350 * time.Second},
		{name: "the transfer is short", peers: 250, upstream: 2500, most: 0, slowest: 10 * time.Second},
	} {
		if race.Enabled && i%4 != 0 {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				links := map[string]*fakeLink{}
				if test.peers > 0 {
					links["node1"] = &fakeLink{rate: test.peers * mbit, appearsAfter: test.appears, busy: test.busy}
				}
				s := simulate(m, links)
				s.consumeTime = test.consume
				s.limiter, s.pull.Limit = fetch.NewLimiter(test.limit), test.limit
				upstream := &fakeLink{rate: test.upstream * mbit}
				s.upstream.open = upstream.openRange
				took, err := s.run(t.Context())
				if err != nil || took > test.slowest {
					t.Errorf("after %v: %v", took, err)
				}
				if read := s.progress.UpstreamBytes.Load() / mib; read < test.least || read > test.most {
					t.Errorf("%d chunks came from the upstream, want %d to %d", read, test.least, test.most)
				}
			})
		})
	}
}

// TestPullGivesUpOnABusySource: a source whose sends hang responds with 429 forever.
func TestPullGivesUpOnABusySource(t *testing.T) {
	m := numberedManifest(t, 60)
	for name, upstream := range map[string]*fakeLink{"without upstream": nil, "with upstream": {rate: 100 * mbit}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := simulate(m, map[string]*fakeLink{"node1": {}})
				s.openRange = func(context.Context, Source, int64, int64) (io.ReadCloser, error) {
					return nil, &busyError{retryAfter: time.Second}
				}
				if upstream != nil {
					s.upstream.open = upstream.openRange
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*maxBusyTime)
				defer cancel()
				took, err := s.run(ctx)
				if upstream != nil {
					if err != nil || s.progress.UpstreamBytes.Load() != m.Size() {
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
