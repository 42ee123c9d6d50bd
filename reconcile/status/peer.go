package status

import (
	"fmt"
	"time"

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
	Node    string `json:"node"`
	Address string `json:"address"` // "": none is declared
	// Queried: at least one query has ended, with a response or an error.
	Queried  bool `json:"asked"`
	Responds bool `json:"answers"` // the last query succeeded
	// LastResponse is when the node last responded. For a node that does not respond now, it is
	// the start of the last successful query.
	LastResponse time.Time `json:"lastAnswer,omitzero"`
	// Problem is why the node does not respond, and UnreachableSince since when; zero if it does.
	Problem          string    `json:"problem,omitempty"`
	UnreachableSince time.Time `json:"silentSince,omitzero"`
	// Config is the config digest of the node; "" while any part is invalid.
	Config string `json:"config"`
	// Outdated: the last response leaves out disks that are declared since. It is true for a moment.
	Outdated bool `json:"outdated,omitempty"`
	// Omitted is how many copies of undeclared images and of old generations this node left out,
	// because the peer publishes more of them than the configuration can mean. No orphan is deleted
	// then.
	Omitted int  `json:"omitted,omitempty"`
	Skew    Skew `json:"skew"`
	// SkewSince is since when the node has had another configuration, or none, as far as this process
	// knows; zero if it has the same one.
	SkewSince time.Time `json:"skewSince,omitzero"`
}

// skewOf returns the skew of the node p for a node with the configuration of d.
func skewOf(d plan.Desired, p plan.Peer) Skew {
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
			differ = append(differ, fmt.Sprintf("node %s has another one (digest %.12s)", p.Node, p.Config))
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
