package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// A download by an index, with an older generation that has a third of the chunks, is killed by SIGKILL again and again:
// each kill may cost a few MiB.
func TestKilledDownloadByIndexResumes(t *testing.T) {
	skipKilled(t)
	for _, store := range []bool{false, true} {
		t.Run(fmt.Sprintf("store=%v", store), func(t *testing.T) {
			t.Parallel()
			killDownloadByIndex(t, store)
		})
	}
}

func killDownloadByIndex(t *testing.T, store bool) {
	u := newUpdateSite(t)
	u.withStore = store
	old, next := fetchtest.Random(1, int(*killSize)), fetchtest.Random(2, int(*killSize))
	for at := 0; at < len(old); at += 6 << 20 {
		copy(next[at:min(at+2<<20, len(next))], old[at:])
	}
	u.write("old.raw", old)
	u.write("next.raw", next)
	args := []string{"publish", u.path("old.raw"), u.path("next.raw"), "--out", u.dir}
	if store {
		args = append(args, "--store")
	}
	u.run(u.command(args...))
	u.update("old.raw")
	u.sentBytes()
	u.update("next.raw")
	once := u.sentBytes()

	u.newNode()
	u.update("old.raw")
	u.sentBytes()
	u.declare("next.raw")
	random := rand.New(rand.NewPCG(*killSeed, 3))
	kills := int64(0)
	for u.runUntilKilled(random) {
		kills++
	}
	u.wantCopy("next.raw")
	twice := u.sentBytes() - once
	t.Logf("%d kills, %.1f MiB fetched again, of %.1f MiB", kills, float64(twice)/(1<<20), float64(once)/(1<<20))
	if kills < 2 || twice > kills*maxRefetched {
		t.Errorf("%d bytes were fetched again after %d kills, at most %d after each are allowed", twice, kills, maxRefetched)
	}
}

// runUntilKilled runs reconcile. It returns true if the process was killed, and false if it succeeded.
func (u *updateSite) runUntilKilled(random *rand.Rand) bool {
	cmd := u.reconcileCommand()
	var out strings.Builder
	cmd.Stderr = &out
	u.mu.Lock()
	u.killAt = u.sent + random.Int64N(*killSize/3) + 1
	err := cmd.Start()
	u.victim = cmd.Process
	u.mu.Unlock()
	if err != nil {
		u.t.Fatal(err)
	}
	err = cmd.Wait()
	u.mu.Lock()
	killed := u.victim == nil
	u.victim = nil
	u.mu.Unlock()
	if !killed && err != nil {
		u.t.Fatalf("%v: %s", err, out.String())
	}
	return killed
}
