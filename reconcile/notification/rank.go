package notification

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
)

// Rank returns how many of the nodes come before the node self for a condition, by rendezvous hashing: 0 is the first one. The
// score of a node is the SHA-256 of the kind, the image and the node, each preceded by its length as 8 bytes, big-endian; the
// smallest one is first. nodes need not contain self.
func Rank(c Condition, self string, nodes []string) int {
	own, rank := score(c, self), 0
	for _, node := range nodes {
		if other := score(c, node); node != self && other < own {
			rank++
		}
	}
	return rank
}

// Partners returns the two nodes that come first among the other nodes for a condition, or fewer if there are fewer. They are the ones
// that send its events if self does not.
func Partners(c Condition, self string, nodes []string) []string {
	var partners []string
	scores := map[string]string{}
	for _, node := range nodes {
		if node == self {
			continue
		}
		scores[node] = score(c, node)
		partners = append(partners, node)
		slices.SortFunc(partners, func(a, b string) int { return strings.Compare(scores[a], scores[b]) })
		partners = partners[:min(len(partners), 2)]
	}
	return partners
}

// score returns the hash as a string, which is comparable.
func score(c Condition, node string) string {
	var b []byte
	for _, name := range []string{string(c.Kind), c.Image, node} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(name)))
		b = append(b, name...)
	}
	sum := sha256.Sum256(b)
	return string(sum[:])
}
