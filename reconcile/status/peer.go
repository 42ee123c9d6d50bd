package status

import (
	"fmt"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// Skew says how the configuration of another node compares with this node's.
type Skew string

// The kinds of skew. Where it is SkewOther or SkewInvalid, nothing is deleted that
// counts on the copies of that node.
const (
	SkewSame    Skew = "same"
	SkewOther   Skew = "other"
	SkewInvalid Skew = "invalid" // that node's is not wholly valid
	SkewUnknown Skew = "unknown" // it never answered, or this node's is not wholly valid
)

// PeerStatus is another node, as it answered last.
type PeerStatus struct {
	Node    string `json:"node"`
	Address string `json:"address"` // "" when none is declared
	// Asked: at least one question has ended, well or not.
	Queried  bool `json:"asked"`
	Responds bool `json:"answers"` // what it said last stands
	// LastResponse is when it last gave a sign of life, and of a silent one when the last
	// question was asked that it answered.
	LastResponse time.Time `json:"lastAnswer,omitzero"`
	// Problem says why it does not answer, SilentSince since when.
	Problem          string    `json:"problem,omitempty"`
	UnreachableSince time.Time `json:"silentSince,omitzero"`
	// Config is the digest of its configuration, "" while anything of it is broken.
	Config string `json:"config"`
	Skew   Skew   `json:"skew"`
}

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

// skewText is one line about the nodes whose configuration differs, "" if there are
// none.
func skewText(peers []PeerStatus) string {
	var differ []string
	for _, p := range peers {
		switch p.Skew {
		case SkewOther:
			differ = append(differ, fmt.Sprintf("node %s has another one (digest %.12s)", p.Node, p.Config))
		case SkewInvalid:
			differ = append(differ, fmt.Sprintf("that of node %s is not wholly valid", p.Node))
		}
	}
	if len(differ) == 0 {
		return ""
	}
	text := fmt.Sprintf("the configuration differs on %d of %d other nodes: ", len(differ), len(peers))
	return text + plan.JoinMax(differ, "; ", 5)
}
