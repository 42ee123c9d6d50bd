package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
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
	Asked   bool `json:"asked"`
	Answers bool `json:"answers"` // what it said last stands
	// LastAnswer is when it last gave a sign of life, and of a silent one when the last
	// question was asked that it answered.
	LastAnswer time.Time `json:"lastAnswer,omitzero"`
	// Problem says why it does not answer, SilentSince since when.
	Problem     string    `json:"problem,omitempty"`
	SilentSince time.Time `json:"silentSince,omitzero"`
	// Config is the digest of its configuration, "" while anything of it is broken.
	Config string `json:"config"`
	Skew   Skew   `json:"skew"`
}

func (v View) peers() []PeerStatus {
	peers := []PeerStatus{}
	for _, name := range slices.Sorted(maps.Keys(v.Observed.Peers)) {
		p := v.Observed.Peers[name]
		s := PeerStatus{
			Node: name, Address: v.Desired.Config.Nodes[name].Address, Asked: p.Asked, Answers: p.answers(),
			LastAnswer: p.Last, Problem: p.Problem, Config: p.Config, Skew: skewOf(v.Desired, p),
		}
		if p.Problem != "" {
			s.SilentSince = v.Observed.Now.Add(-p.Silent)
		}
		peers = append(peers, s)
	}
	return peers
}

func skewOf(d Desired, p Peer) Skew {
	switch {
	case p.Config == "" && !p.answers() && p.Last.IsZero():
		return SkewUnknown
	case p.Config == "":
		return SkewInvalid
	case d.Digest == "":
		return SkewUnknown
	case p.Config != d.Digest:
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
	const most = 5
	if more := len(differ) - most; more > 0 {
		differ = append(differ[:most], fmt.Sprintf("and %d more", more))
	}
	return text + strings.Join(differ, "; ")
}

// silence says of a node that does not answer for how long and why, "" if what is
// known of its disks stands.
func (v View) silence(node string) string {
	if node == v.Desired.Node {
		return ""
	}
	p, asking := v.Observed.Peers[node]
	switch {
	case p.answers():
		return ""
	case !asking:
		return fmt.Sprintf("node %s was not asked", node)
	case !p.Asked:
		return fmt.Sprintf("node %s has not answered yet", node)
	}
	return fmt.Sprintf("node %s has not answered for %v: %s", node, p.Silent.Round(time.Second), p.Problem)
}
