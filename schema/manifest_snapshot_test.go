package schema

import "testing"

// TestUnsureIsInTheDigest: a node that has lost a VolumeSnapshot does not agree with one
// that keeps its image for it.
func TestUnsureIsInTheDigest(t *testing.T) {
	const without = "images: {}\n"
	const with = without + `---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: golden}
spec: {volumeSnapshotClassName: lost, source: {persistentVolumeClaimName: vm}}
`
	a, b := load(t, without), load(t, with)
	if a.Digest == b.Digest || b.Skipped[0].Image != "golden" {
		t.Errorf("digests %s and %s, skipped %+v", a.Digest, b.Digest, b.Skipped)
	}
}
