package job

import (
	"context"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/peer"
)

// Query is what a job needs to ask about a copy that was withdrawn.
type Query struct {
	Client    *peer.Client
	Nodes     []string
	Addresses []peer.Address // of those nodes that have one
}

// QueryPeers asks every node itself, at the same time. Who does not answer in time is
// missing from the answers.
func (j Job) QueryPeers(ctx context.Context) map[string]peer.State {
	ctx, cancel := context.WithTimeout(ctx, QueryTimeout)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	answers := map[string]peer.State{}
	for _, at := range j.Query.Addresses {
		all.Go(func() {
			state, err := j.Query.Client.Copies(ctx, at, j.Action.Image)
			if err != nil {
				return // as good as no answer, whatever the reason
			}
			mu.Lock()
			defer mu.Unlock()
			answers[at.Node] = state
		})
	}
	all.Wait()
	return answers
}

// A job that deletes goes through Round twice. The first one withdraws the copy,
// publishes that, and lets the job ask; the second one, with a look of its own that
// began after all answers, decides, and lets the job remove.

// QueryTimeout is for the answers about a copy that is to go.
const QueryTimeout = 5 * time.Second
