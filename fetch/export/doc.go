// Package export makes an image of a volume: of one of Longhorn's, from a replica on a
// disk of this node, or of a file or block device that the operator allows.
//
//	Find   the replica folders of the volume on all disks of the node
//	       - those that cannot be read, are being rebuilt or were given up
//	       -> the best of the rest, if its chain of layers is whole
//	Fill   open all layers -> has the part come from the very same bytes? go on : begin
//	       -> raw: the disk itself; qcow2: qcow2.Encode of it -> part
//	       -> did anything change meanwhile? then it failed
//
// What follows from it:
//
//  1. The best is, for a snapshot, which is the same in all replicas: the one of the
//     largest volume, then the first by disk and folder. For the head, it is the one
//     that was written to last, by Longhorn's counter of revisions where it counts them
//     and by the time of the head otherwise: what a stale replica has is older data, and
//     is not taken because the newer one is attached.
//  2. What may change by itself is looked for again: an attached volume is waited for,
//     as is one that has no replica here. Only what the declaration gets wrong is final.
//  3. A part goes on only where every layer and the image below are, by size, times and
//     inode, what they were. It never holds bytes of two contents.
//  4. A volume is raw bytes, whatever those look like: a guest that writes the header
//     of a qcow2 image to its disk has no other file read for it.
//  5. A block device is opened exclusively, so that nothing that the kernel knows of has
//     it mounted or claimed, and the kernel's count of writes to it must stay the same. A
//     part of one is not taken up again: nothing tells that it holds what it held.
package export
