package main

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wants "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/twmb/franz-go/pkg/kfake"
)

func startKafka() (brokers []string, stop func(), err error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(3, topic), kfake.GroupMinSessionTimeout(time.Second))
	if err != nil {
		return nil, nil, err
	}
	return cluster.ListenAddrs(), cluster.Close, nil
}

// publisherKafka writes messages with these ids.
func publisherKafka(brokers []string) func(ids []string) error {
	return func(ids []string) error {
		publisher, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: brokers, Marshaler: kafka.DefaultMarshaler{}}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		for _, id := range ids {
			err = errors.Join(err, publisher.Publish(topic, message.NewMessage(id, []byte(`{}`))))
		}
		return errors.Join(err, publisher.Close())
	}
}

// subscribeKafka is a member of a consumer group, which reads from the beginning where it has no
// offset.
func subscribeKafka(brokers []string, group string) (message.Subscriber, error) {
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Consumer.Offsets.Initial = -2 // the oldest
	config.Consumer.Group.Session.Timeout = 2 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	return kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: brokers, ConsumerGroup: group, Unmarshaler: kafka.DefaultMarshaler{}, OverwriteSaramaConfig: config,
	}, watermill.NopLogger{})
}

// startNATS starts a server with a stream of orders.
func startNATS(folder string) (url string, stop func(), err error) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, JetStream: true, StoreDir: folder})
	if err != nil {
		return "", nil, err
	}
	s.Start()
	stop = func() { s.Shutdown(); s.WaitForShutdown() }
	if !s.ReadyForConnections(20 * time.Second) {
		stop()
		return "", nil, errors.New("the NATS server does not start")
	}
	return s.ClientURL(), stop, nil
}

func publisherNATS(url string) func(ids []string) error {
	return func(ids []string) error {
		conn, err := nats.Connect(url)
		if err != nil {
			return err
		}
		defer conn.Close()
		stream, err := conn.JetStream()
		if err == nil {
			_, err = stream.AddStream(&nats.StreamConfig{Name: topic, Subjects: []string{topic}})
		}
		for _, id := range ids {
			m := nats.NewMsg(topic)
			m.Data = []byte(`{}`) // as in Kafka: the same id with another payload would be a dead letter
			m.Header.Set(wants.WatermillUUIDHdr, id)
			if err == nil {
				_, err = stream.PublishMsg(m)
			}
		}
		return err
	}
}

// subscribeNATS is a member of a durable consumer, which begins with the first message of the
// stream.
func subscribeNATS(url, group string) (message.Subscriber, error) {
	return wants.NewSubscriber(wants.SubscriberConfig{
		URL: url, QueueGroupPrefix: group, AckWaitTimeout: 2 * time.Second,
		// Without ManualAck the client acknowledges even what the subscriber gave up.
		JetStream: wants.JetStreamConfig{
			DurablePrefix:    group,
			SubscribeOptions: []nats.SubOpt{nats.ManualAck(), nats.DeliverAll(), nats.AckExplicit(), nats.AckWait(2 * time.Second)},
		},
	}, watermill.NopLogger{})
}
