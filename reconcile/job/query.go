package job

import (
	"context"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/peer"
)

// QueryTimeout is how long QueryPeers waits for a response.
const QueryTimeout = 5 * time.Second

// QueryPeers requests the current copies of an image from all nodes at the same time. The
// responses are by node name; a node that fails or does not respond within QueryTimeout is
// missing.
func QueryPeers(ctx context.Context, client *peer.Client, nodes []peer.Address, image string) map[string]peer.State {
	ctx, cancel := context.WithTimeout(ctx, QueryTimeout)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	responses := map[string]peer.State{}
	for _, at := range nodes {
		all.Go(func() {
			state, err := client.Copies(ctx, at, image)
			if err != nil {
				return // the same as no response, whatever the reason
			}
			mu.Lock()
			defer mu.Unlock()
			responses[at.Node] = state
		})
	}
	all.Wait()
	return responses
}
