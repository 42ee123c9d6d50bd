package plan

import "testing"

// TestScore fixes the scores of ranks: with other scores every image would move to other disks.
// Another program computed the vectors. The hash of some names is the start of
//
//	printf '\0\0\0\0\0\0\0\5node1\0\0\0\0\0\0\0\5disk1' | sha256sum
func TestScore(t *testing.T) {
	for _, v := range []struct {
		image, node, disk string
		want              uint64
	}{
		{"parrot", "node1", "disk1", 0x9a500ba6ebf78d1f},
		{"parrot", "node1", "disk2", 0xe1a76b03f4130729},
		{"parrot", "node2", "disk1", 0xb2097d59a58bed5b},
		{"parrotnode1", "", "disk1", 0xbd98510a0437fe2f},
		{"debian-13.qcow2", "rack-7.example", "nvme0", 0x5bb6635a4a064f31},
	} {
		if got := mix64(nameHash(v.image) ^ nameHash(v.node, v.disk)); got != v.want {
			t.Errorf("score of %s on %s/%s is %#x, want %#x", v.image, v.node, v.disk, got, v.want)
		}
	}
}

// TestMix64 compares with the first value that SplitMix64 gives for the seed 0.
func TestMix64(t *testing.T) {
	if got := mix64(0x9e3779b97f4a7c15); got != 0xe220a8397b1dcdaf {
		t.Errorf("got %#x", got)
	}
}
