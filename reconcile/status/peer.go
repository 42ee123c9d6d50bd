package status

import (
	"fmt"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// Skew is how the configurations of another node and of this node compare.
type Skew string

// The kinds of skew. With SkewOther or SkewInvalid, no deletion counts on the copies of the other node.
const (
	SkewSame    Skew = "same"
	SkewOther   Skew = "other"
	SkewInvalid Skew = "invalid" // a part of the other node's configuration is invalid
	SkewUnknown Skew = "unknown" // the other node never responded, or a part of this node's configuration is invalid
)

// PeerStatus is another node, as of its last response.
type PeerStatus struct {
	Node     string `json:"node"`
	Address  string `json:"address"`  // "": none is declared
	Responds bool   `json:"responds"` // the last query succeeded
	model.Peer
	Skew Skew `json:"skew"`
}

// skewOf returns the skew of the peer p for this node, whose desired state is d.
func skewOf(d plan.Desired, p model.Peer) Skew {
	switch {
	case p.ConfigDigest == "" && !p.Responds() && p.LastResponse.IsZero():
		return SkewUnknown
	case p.ConfigDigest == "":
		return SkewInvalid
	case d.Digest == "":
		return SkewUnknown
	case p.ConfigDigest != d.Digest:
		return SkewOther
	}
	return SkewSame
}

// skewText returns one line about the nodes whose configuration differs; "": it differs on none.
func skewText(peers []PeerStatus) string {
	var differ []string
	for _, p := range peers {
		switch p.Skew {
		case SkewOther:
			differ = append(differ, fmt.Sprintf("node %s has digest %.12s", p.Node, p.ConfigDigest))
		case SkewInvalid:
			differ = append(differ, fmt.Sprintf("on node %s it is partly invalid", p.Node))
		}
	}
	if len(differ) == 0 {
		return ""
	}
	return fmt.Sprintf("the configuration differs on %d of %d other nodes: %s", len(differ), len(peers), plan.JoinMax(differ, "; ", 5))
}
