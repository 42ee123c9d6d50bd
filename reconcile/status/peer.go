package status

import (
	"fmt"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// Skew is how the configuration of another node compares with that of this node.
type Skew string

// The kinds of skew. With SkewOther or SkewInvalid, no deletion counts on the copies of that node.
const (
	SkewSame    Skew = "same"
	SkewOther   Skew = "other"
	SkewInvalid Skew = "invalid" // that node has an invalid part
	SkewUnknown Skew = "unknown" // that node never responded, or this node has an invalid part
)

// PeerStatus is another node, as of its last response.
type PeerStatus struct {
	Node     string `json:"node"`
	Address  string `json:"address"`  // "": none is declared
	Responds bool   `json:"responds"` // the last query succeeded
	model.Peer
	Skew Skew `json:"skew"`
}

// skewOf returns the skew of the node p for a node with the configuration of d.
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

// skewText returns one line about the nodes whose configuration differs.
func skewText(peers []PeerStatus) (text string, differs bool) {
	var differ []string
	for _, p := range peers {
		switch p.Skew {
		case SkewOther:
			differ = append(differ, fmt.Sprintf("node %s has another one (digest %.12s)", p.Node, p.ConfigDigest))
		case SkewInvalid:
			differ = append(differ, fmt.Sprintf("that of node %s is partly invalid", p.Node))
		}
	}
	if len(differ) == 0 {
		return "", false
	}
	text = fmt.Sprintf("the configuration differs on %d of %d other nodes: ", len(differ), len(peers))
	return text + plan.JoinMax(differ, "; ", 5), true
}
