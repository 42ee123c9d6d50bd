package peer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/race"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

func TestPullAsksTheOriginWherePeersAreNotEnough(t *testing.T) {
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
				links := map[string]*link{}
				if test.peers > 0 {
					links["node1"] = &link{rate: test.peers * mbit, since: test.later, busy: test.busy}
				}
				s := simulate(m, links)
				s.consume = test.consume
				s.limiter, s.Limit = fetch.NewLimiter(test.limit), test.limit
				origin := &link{rate: test.origin * mbit}
				s.origin.open = origin.send
				took, err := s.run(t.Context())
				if err != nil || took > test.slowest {
					t.Errorf("after %v: %v", took, err)
				}
				if read := s.progress.Moved.Load() / mib; read < test.least || read > test.most {
					t.Errorf("%d chunks were read from the origin, want %d to %d", read, test.least, test.most)
				}
			})
		})
	}
}
