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
		least float64 // how many times faster than one of 100 Mbit/s
	}{
		{"one", []float64{100}, 0.99},
		{"two", []float64{100, 100}, 1.95},
		{"three", []float64{100, 100, 100}, 2.85},
		{"eight", []float64{100, 100, 100, 100, 100, 100, 100, 100}, 6.5},
		{"one of half the rate", []float64{100, 50}, 1.4},
		{"one of a quarter", []float64{100, 100, 25}, 2.1},
		{"one of a twentieth", []float64{100, 100, 5}, 1.9},
		{"one of a thousandth", []float64{100, 100, 0.1}, 1.85},
		{"one that says nothing", []float64{100, 100, 0}, 1.85},
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
					t.Errorf("%.2f times as fast as one, want %.2f", faster, test.least)
				}
				if s.wastePercent() > 2 {
					t.Errorf("%.1f%% were sent twice", s.wastePercent())
				}
				if most := windowChunks + len(links) + 1; len(s.buffers) > most {
					t.Errorf("it took %d buffers, want at most %d", len(s.buffers), most)
				}
				for name, l := range links {
					if l.maxOpen > 1 || l.open != 0 {
						t.Errorf("%s: %d requests at once, %d left open", name, l.maxOpen, l.open)
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
		s.consumeTime = 5 * time.Second // longer in all than any patience
		if _, err := s.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.wastePercent() > 0 {
			t.Errorf("%.1f%% were sent twice", s.wastePercent())
		}
	})
}

func TestPullGivesUpWithoutAUsableSource(t *testing.T) {
	m := numberedManifest(t, 60)
	for _, test := range []struct {
		name  string
		links map[string]*fakeLink
		words []string
		most  time.Duration
	}{
		{"none is there", nil, []string{"no other node"}, 31 * time.Second},
		{"none says anything", map[string]*fakeLink{"node1": {}, "node2": {}}, []string{"node1/disk1: no response in 10s", "node2/disk1:"}, 46 * time.Second},
		{"a trickle", map[string]*fakeLink{"node1": {rate: 900}}, []string{"node1/disk1: stalled: less than 1 KiB/s"}, 46 * time.Second},
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
						t.Errorf("error does not say %q: %v", word, err)
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
		// Without the silence it is 17 s; the other one takes over once it is there.
		if took > 23*time.Second {
			t.Errorf("it took %v", took)
		}
		if s.wastePercent() > 1 {
			t.Errorf("%.1f%% were sent twice", s.wastePercent())
		}
	})
}

func TestPullRetriesABusySource(t *testing.T) {
	m := numberedManifest(t, 60)
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		s := simulate(m, map[string]*fakeLink{"node1": {rate: 100 * mbit}})
		send := s.openRange
		begun := time.Now()
		s.openRange = func(ctx context.Context, from Source, at, to int64) (io.ReadCloser, error) {
			if asked++; time.Since(begun) < 5*time.Minute {
				return nil, &busyError{retryAfter: 2 * time.Second}
			}
			return send(ctx, from, at, to)
		}
		took, err := s.run(t.Context())
		if err != nil || took > 5*time.Minute+10*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
		if asked < 140 || asked > 180 {
			t.Errorf("it was asked %d times in 5 minutes of being busy for 2 s", asked)
		}
	})
}

func TestPullAtALimitRequestsNothingTwice(t *testing.T) {
	m := numberedManifest(t, 40)
	for _, limit := range []int64{64 << 10, mib, 20 * mib} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := simulate(m, map[string]*fakeLink{"node1": {rate: 1000 * mbit}, "node2": {rate: 100 * mbit}, "node3": {rate: 1000 * mbit}})
				s.Limit, s.limiter = limit, fetch.NewLimiter(limit)
				took, err := s.run(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if rate := float64(m.Size()) / took.Seconds(); rate > 1.05*float64(limit) || rate < 0.9*float64(limit) {
					t.Errorf("%.0f bytes came in a second at a limit of %d", rate, limit)
				}
				if s.wastePercent() > 2 {
					t.Errorf("%.1f%% were sent twice", s.wastePercent())
				}
			})
		})
	}
}

// TestPullsShareTheirMemory: the more of them, the less each has, and none stands still.
func TestConcurrentPullsShareMemory(t *testing.T) {
	m := numberedManifest(t, 60)
	for _, others := range []int32{0, 1, 4, 40} {
		synctest.Test(t, func(t *testing.T) {
			links := map[string]*fakeLink{"node1": {rate: 1000 * mbit}, "node2": {rate: 1000 * mbit}, "node3": {rate: 100 * mbit}}
			s := simulate(m, links)
			s.Client.activePulls.Store(others)
			s.consumeTime = 10 * time.Millisecond
			if _, err := s.run(t.Context()); err != nil {
				t.Fatal(err)
			}
			most := min(windowChunks, max(minWindowChunks, sharedChunks/int(others+1)))
			if got := len(s.buffers); got > most+len(links)+1 {
				t.Errorf("with %d others it took %d buffers, want at most %d", others, got, most+len(links)+1)
			}
		})
	}
}

// A chunk may take longer than a pull goes on without a source.
func TestPullContinuesWhenASlowConnectionDrops(t *testing.T) {
	m := numberedManifest(t, 6)
	synctest.Test(t, func(t *testing.T) {
		l, asked := &fakeLink{rate: 16 << 10}, 0
		s := simulate(m, map[string]*fakeLink{"node1": l})
		s.openRange = func(ctx context.Context, _ Source, at, to int64) (io.ReadCloser, error) {
			b, err := l.openRange(ctx, at, to)
			if asked++; asked < 3 {
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
		peers       float64 // Mbit/s
		origin      float64
		limit       int64
		consume     time.Duration
		least, most int64 // chunks of the origin
		slowest     time.Duration
		later       time.Duration
		busy        bool
	}{
		{name: "peers are faster", peers: 50, origin: 25, least: 8, most: 8, slowest: 44 * time.Second},
		{name: "peers are faster for long", peers: 5, origin: 2.5, least: 16, most: 32, slowest: 430 * time.Second},
		{name: "the part is what is slow", peers: 50, origin: 250, consume: 240 * time.Millisecond, most: 0, slowest: 62 * time.Second},
		{name: "the limit is what is slow", peers: 50, origin: 250, limit: 5 * mib / 2, most: 0, slowest: 105 * time.Second},
		{name: "the origin is faster", peers: 2.5, origin: 50, least: 212, most: 248, slowest: 55 * time.Second},
		{name: "there is no peer", origin: 25, least: 250, most: 250, slowest: 96 * time.Second},
		{name: "a peer comes later", origin: 25, peers: 50, later: 20 * time.Second, least: 20, most: 45, slowest: 65 * time.Second},
		{name: "peers send to others", peers: 25, busy: true, origin: 250, most: 0, slowest: 350 * time.Second},
		{name: "it is over soon", peers: 250, origin: 2500, most: 0, slowest: 10 * time.Second},
	} {
		if race.Enabled && i%4 != 0 {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				links := map[string]*fakeLink{}
				if test.peers > 0 {
					links["node1"] = &fakeLink{rate: test.peers * mbit, appearsAfter: test.later, busy: test.busy}
				}
				s := simulate(m, links)
				s.consumeTime = test.consume
				s.limiter, s.Limit = fetch.NewLimiter(test.limit), test.limit
				origin := &fakeLink{rate: test.origin * mbit}
				s.upstream.open = origin.openRange
				took, err := s.run(t.Context())
				if err != nil || took > test.slowest {
					t.Errorf("after %v: %v", took, err)
				}
				if read := s.progress.UpstreamBytes.Load() / mib; read < test.least || read > test.most {
					t.Errorf("%d chunks were read from the origin, want %d to %d", read, test.least, test.most)
				}
			})
		})
	}
}

// A source whose sends hang is busy for ever.
func TestPullGivesUpOnABusySource(t *testing.T) {
	m := numberedManifest(t, 60)
	for name, origin := range map[string]*fakeLink{"alone": nil, "with an origin": {rate: 100 * mbit}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := simulate(m, map[string]*fakeLink{"node1": {}})
				s.openRange = func(context.Context, Source, int64, int64) (io.ReadCloser, error) {
					return nil, &busyError{retryAfter: time.Second}
				}
				if origin != nil {
					s.upstream.open = origin.openRange
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*maxBusyTime)
				defer cancel()
				took, err := s.run(ctx)
				if origin != nil {
					if err != nil || s.progress.UpstreamBytes.Load() != m.Size() {
						t.Errorf("after %v: %v", took, err)
					}
				} else if err == nil || !strings.Contains(err.Error(), "node1/disk1: busy: the sending limit is reached") {
					t.Errorf("after %v: %v", took, err)
				}
				if took < maxBusyTime || took > maxBusyTime+2*time.Minute {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}
