// Package notification decides which changes of state are sent to the server of settings.notify, by which node, and in which form.
//
//	each observation (a status document):
//	    on       := the conditions that hold in the cluster, as this node sees it   (Observe)
//	    episodes := begin, continue and end with the conditions                    (Tracker.Update)
//	    learn what other nodes have sent (CloudEvents only)                        (Tracker.Published, Join, Learn)
//	    due      := what this node has to send now                                 (Tracker.Due)
//
// # Promises
//
//  1. Conditions are derived from what every node knows: the configuration, its own disks, and what the other nodes publish. So
//     all nodes have the same episodes, some seconds apart.
//  2. A condition that holds for less than Hold is not sent. An episode is over when its condition has not held for Hold.
//     What is unknown, because a node does not respond, neither begins nor ends an episode.
//  3. For each condition, the nodes that respond have ranks (Rank). The first one sends at once, the second one once a delay has
//     passed. After twice the delay, two more nodes send: the one that sent the beginning, and the first one of those with the same
//     configuration. Alertmanager combines the messages of all of them by their labels, and a node that only pretends to send silences
//     nothing for longer.
//  4. Receivers of CloudEvents need not combine anything. There, each node asks the first two nodes, and believes, which events were
//     sent. Beginnings and ends come in turn: an episode begins only after the end of the one before was sent, and if the server accepted
//     nothing until an episode was over, its beginning is sent before its end. An event comes twice only if no node that knows that it was
//     sent can be asked.
//  5. Episodes survive a restart in a record on the disks of the node (Tracker.Record), and so does what was sent. A node that has
//     just started, or was alone, asks all others what it missed.
//  6. The number of episodes is bounded by the configuration: it is a small number for each declared image. Texts are clipped, and
//     printable.
//
// The package does no I/O, and reads no clock. Package reconcile sends, and keeps the record.
//
// # Reading order
//
// condition.go, tracker.go, saved.go, rank.go, message.go.
package notification
